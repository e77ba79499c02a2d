/* The parts of the viewer: the list of episodes, the controls, and a pane for each episode that is shown. */

/* Only the rows in sight are there: a run may have thousands of episodes. */
class EpisodeList {
  constructor(open) {
    Object.assign(this, {open, height: 68, rows: [], current: null});
    this.space = el("div", {class: "rv-rows", role: "presentation"});
    this.node = el("div", {class: "rv-list", role: "listbox", tabindex: 0, "aria-label": "Episodes",
      onscroll: () => this.draw(), onkeydown: (event) => this.key(event)}, this.space);
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  fill(rows, current) {
    Object.assign(this, {rows, current});
    this.space.style.height = `${rows.length * this.height}px`;
    this.node.hidden = !rows.length;
    this.reveal();
  }

  choose(episode) {
    this.current = episode;
    this.reveal();
  }

  reveal() {
    const top = this.rows.indexOf(this.current) * this.height, {scrollTop, clientHeight} = this.node;
    if (top >= 0 && (top < scrollTop || top + this.height > scrollTop + clientHeight)) this.node.scrollTop = top - clientHeight / 2 + this.height / 2;
    this.draw();
  }

  draw() {
    const {scrollTop, clientHeight} = this.node;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - 4);
    const last = Math.min(this.rows.length, Math.ceil((scrollTop + clientHeight) / this.height) + 4);
    this.space.replaceChildren(...this.rows.slice(first, last).map((episode, i) => this.row(episode, first + i)));
    const active = this.rows.indexOf(this.current);
    if (active >= first && active < last) this.node.setAttribute("aria-activedescendant", `rv-row-${active}`);
    else this.node.removeAttribute("aria-activedescendant");
  }

  row(episode, at) {
    const row = el("div", {id: `rv-row-${at}`, class: "rv-row", role: "option", "aria-selected": episode === this.current,
      "aria-setsize": this.rows.length, "aria-posinset": at + 1, onclick: () => this.open(episode)},
    mark(episode), el("span", {class: "rv-row-title"}, episode.title), el("span", {class: "rv-row-note"}, episode.note ?? ""));
    row.style.transform = `translateY(${at * this.height}px)`;
    return row;
  }

  key(event) {
    const offset = {ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8}[event.key];
    if (!offset || !this.rows.length) return;
    event.preventDefault();
    const at = this.rows.indexOf(this.current) + offset;
    this.open(this.rows[Math.max(0, Math.min(this.rows.length - 1, at))]);
  }
}

/* A mark that needs no colour: the outcome is its first tag. */
function mark({tags}) {
  const [sign, style] = {solved: ["✓", "good"], failed: ["✗", "bad"], error: ["!", "warn"]}[tags[0]] ?? ["·", ""];
  return el("span", {class: `rv-mark ${style}`, role: "img", "aria-label": tags[0] ?? "episode"}, sign);
}

class Controls {
  constructor(viewer) {
    const button = (label, path, does) => el("button", {type: "button", class: "rv-button", "aria-label": label, title: label, onclick: does},
      svg("svg", {viewBox: "0 0 24 24", "aria-hidden": "true"}, svg("path", {d: path})));
    this.viewer = viewer;
    this.play = button("Play (space)", PLAY, () => this.toggle());
    this.slider = el("input", {type: "range", min: 0, value: 0, "aria-label": "Step", oninput: () => viewer.go(+this.slider.value)});
    this.place = el("output", {class: "rv-place"});
    this.text = el("button", {type: "button", class: "rv-filter", "aria-pressed": false, title: "Boards as plain text (t)", onclick: () => this.plain()}, "Text");
    this.link = el("a", {class: "rv-link", href: "#", title: "A link to this episode and step"}, "Link");
    this.node = el("div", {class: "rv-controls"},
      button("Previous episode (k)", "M6 5v14M19 5 9 12l10 7z", () => viewer.openNext(-1)),
      button("Step back (left arrow)", "M16 5 6 12l10 7z", () => viewer.go(viewer.step - 1)), this.play,
      button("Step (right arrow)", "m8 5 10 7-10 7z", () => viewer.go(viewer.step + 1)),
      button("Next episode (j)", "M18 5v14M5 5l10 7-10 7z", () => viewer.openNext(1)),
      this.slider, this.place, this.text, this.link);
  }

  show(step, steps, said) {
    this.slider.max = steps - 1;
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", said);
    this.place.textContent = `${step} / ${steps - 1}`;
    this.link.href = this.viewer.address();
    if (step === steps - 1) this.stop();
  }

  toggle({quiet = false} = {}) {
    if (this.timer) return this.stop();
    if (this.viewer.step === this.viewer.steps - 1) this.viewer.go(0, {glide: false});
    this.timer = setInterval(() => this.viewer.go(this.viewer.step + 1, {quiet}), 550);
    this.drawPlay();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.drawPlay();
  }

  drawPlay() {
    this.play.querySelector("path").setAttribute("d", this.timer ? PAUSE : PLAY);
    this.play.setAttribute("aria-label", this.timer ? "Pause (space)" : "Play (space)");
  }

  plain() {
    const on = this.text.getAttribute("aria-pressed") !== "true";
    this.text.setAttribute("aria-pressed", on);
    for (const pane of this.viewer.panes) pane.board.plain = on;
    this.viewer.go(this.viewer.step, {glide: false});
  }
}

const PLAY = "m7 4 13 8-13 8z", PAUSE = "M7 5v14M17 5v14";

/* One episode: its title and facts, its board with a line on the last action, its conversation. */
class Pane {
  constructor(viewer) {
    this.viewer = viewer;
    this.head = el("header", {class: "rv-head"});
    const picture = el("div", {class: "rv-board"}), talk = el("div", {class: "rv-talk", tabindex: 0, role: "region", "aria-label": "Conversation"});
    this.caption = el("p", {class: "rv-caption", "aria-live": "polite"});
    this.board = new Board(picture);
    this.board.plain = viewer.controls.text.getAttribute("aria-pressed") === "true";
    this.transcript = new Transcript(talk, (frame) => viewer.go(this.steps.findIndex((step) => step.frame === frame), {glide: false}));
    this.node = el("section", {class: "rv-pane"}, this.head, el("div", {class: "rv-seen"}, picture, this.caption), talk);
  }

  fill(episode, details) {
    this.details = details;
    this.style = this.viewer.data.board_styles[details.board_style] ?? {kind: "text"};
    // What can be stepped to: the start, every action, and every turn that played none.
    this.steps = [{turn: -1, frame: 0}];
    details.turns.forEach((turn, number) => {
      const [from, to] = turn.frames;
      for (let frame = from; frame < to; frame++) this.steps.push({turn: number, frame, action: frame - from + 1, of: to - from});
      if (from === to) this.steps.push({turn: number, frame: from - 1});
    });
    const agent = episode.fields?.[this.viewer.data.compare_by];
    this.head.replaceChildren(mark(episode), el("div", {}, el("h3", {}, [episode.title, agent].filter(Boolean).join(" · ")),
      el("p", {class: "rv-facts"}, (details.facts ?? []).join(" · "))));
    this.transcript.show(details, this.viewer.data.systems?.[details.system] ?? details.system);
  }

  show(step, glide) {
    const at = this.steps[Math.min(step, this.steps.length - 1)];
    const {frames, turns} = this.details;
    this.board.show(this.style, frames, at.frame, glide);
    this.transcript.mark(at.turn < 0 ? 0 : at.turn, at.action ? at.frame : -1);
    this.said = this.describe(at, frames[at.frame], turns[at.turn]);
    this.caption.textContent = this.said;
  }

  describe({turn, action, of}, frame, what) {
    if (turn < 0) return "The start";
    const where = what.title ?? `Turn ${turn + 1}`;
    if (!action) return `${where}: nothing was played`;
    const reward = !frame.reward ? "" : ` (${signed(frame.reward)})`;
    return `${where}${of > 1 ? `, action ${action} of ${of}` : ""}: ${frame.note ?? frame.name ?? ""}${reward}${frame.regret ? `; ${regretWords(frame.regret, frame.chance)}` : ""}`;
  }
}
