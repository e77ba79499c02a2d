/* The conversation of an episode: every turn with its message, its thinking folded, its reply and what was played.

   turn: {pivot?: {what: text, oracle: text} (the episode was lost in this turn: how, and what the oracle plays instead),
          forfeited?: [number, number] (the regret of moves that the budgets no longer allow, of return and of success),
          message, reply: text | null, thinking?: text, answer?: text (the reply without its thinking),
          actions?: [[name, "played" | "not played" | "unknown"], …], problem?: text, reward?: number,
          frames: [from, to] (those that its actions led to; the same number twice if none were),
          image?: text (a data URL of the picture in the message),
          facts?: [text, …], tokens?: [{text, value: number | {name: number}}, …],
          scale?: {name: number} (the size of a token's value at which its colour is full; else that of the largest)} */
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("aria-")) node.setAttribute(key, value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function signed(number) {
  const text = `${+Math.abs(number).toFixed(3)}`;
  return text === "0" ? text : number < 0 ? `−${text}` : `+${text}`;
}

class Transcript {
  /* host: a scrolling element; jump(frame) is called when an action is chosen. */
  constructor(host, jump) {
    this.host = host;
    this.jump = jump;
  }

  show(episode, system) {
    this.frames = episode.frames ?? [];
    this.turns = episode.turns.map((turn, number) => this.turn(turn, number));
    this.host.replaceChildren(...[
      system && el("details", {class: "rv-system"}, el("summary", {}, "System message"), el("pre", {}, system)),
      ...this.turns,
      episode.ending && el("pre", {class: "rv-message rv-ending"}, episode.ending),
      episode.failure && el("p", {class: "rv-problem"}, episode.failure),
    ].filter(Boolean));
    this.host.scrollTop = 0;
  }

  /* Mark the turn and the action that the board shows, and bring the turn into sight. */
  mark(turn, frame) {
    this.turns.forEach((node, number) => node.classList.toggle("current", number === turn));
    for (const chip of this.host.querySelectorAll("button.rv-chip")) {
      const here = +chip.dataset.frame === frame;
      chip.classList.toggle("current", here);
      if (here) chip.setAttribute("aria-current", "step"); else chip.removeAttribute("aria-current");
    }
    const node = this.turns[turn];
    if (!node) return;
    const top = node.offsetTop, {scrollTop, clientHeight} = this.host;
    if (top < scrollTop || top + Math.min(node.offsetHeight, clientHeight) > scrollTop + clientHeight) this.host.scrollTop = top - 8;
  }

  turn(turn, number) {
    const facts = turn.facts?.length ? el("span", {class: "rv-facts"}, turn.facts.join(" · ")) : null;
    const reward = turn.reward === undefined ? null
      : el("span", {class: `rv-reward ${turn.reward < 0 ? "bad" : turn.reward > 0 ? "good" : ""}`}, signed(turn.reward));
    if (!turn.message && turn.reply === null) {  // a single move, without a message
      return el("article", {class: "rv-turn move"}, el("header", {}, el("h4", {}, turn.title), this.actions(turn), reward), pivotNote(turn.pivot));
    }
    return el("article", {class: "rv-turn"},
      el("header", {}, el("h4", {}, turn.title ?? `Turn ${number + 1}`), facts, reward),
      turn.message ? el("pre", {class: "rv-message"}, turn.message) : null,
      turn.image ? el("img", {class: "rv-picture", src: turn.image, alt: "The picture in this message"}) : null,
      this.reply(turn),
      pivotNote(turn.pivot),
    );
  }

  reply(turn) {
    const words = turn.thinking ? turn.thinking.trim().split(/\s+/).length : 0;
    const box = el("div", {class: "rv-reply"});
    if (turn.tokens) box.append(this.coloured(turn));
    else {
      if (words) box.append(el("details", {class: "rv-thinking"},
        el("summary", {}, `Thinking, ${words} word${words === 1 ? "" : "s"}`), el("div", {}, turn.thinking)));
      const rest = turn.answer ?? turn.reply;
      if (rest !== null && rest !== undefined) box.append(el("pre", {}, rest.trim() ? rest : words ? "(nothing after the thinking)" : "(an empty reply)"));
    }
    if (turn.problem) box.append(el("p", {class: "rv-problem"}, turn.problem));
    box.append(this.actions(turn));
    return box;
  }

  /* What the colours say is chosen once for all turns, and for the episodes that are opened after. */
  coloured(turn) {
    const names = [...new Set(turn.tokens.flatMap(({value}) => typeof value === "object" && value ? Object.keys(value) : []))];
    const place = el("div", {class: "rv-coloured"});
    place.paint = () => {
      const chosen = names.includes(Transcript.colour) ? Transcript.colour : names[0];
      place.replaceChildren(colouredTokens(turn, names, chosen, (name) => {
        Transcript.colour = name;
        for (const other of document.querySelectorAll(".rv-coloured")) other.paint();
        place.querySelector("select").focus();
      }));
    };
    place.paint();
    return place;
  }

  actions(turn) {
    let frame = turn.frames[0];
    const chips = (turn.actions ?? []).map(([name, status]) => {
      if (status !== "played") return el("span", {class: "rv-chip not", title: status}, name || "(nothing)", el("span", {class: "hidden"}, ` (${status})`));
      const at = frame++, {regret, chance, pivot} = this.frames[at] ?? {};
      const chip = el("button", {type: "button", class: `rv-chip${pivot ? " pivot" : ""}`, "data-frame": at, onclick: () => this.jump(at)}, name);
      return regret ? el("span", {class: "rv-move"}, chip, regretNote(regret, chance)) : chip;
    });
    const unplayed = turn.forfeited && el("span", {class: "rv-move"}, el("span", {class: "rv-facts"}, "moves forfeited"), regretNote(turn.forfeited));
    return el("div", {class: "rv-actions"}, ...chips, unplayed);
  }
}

/* The regret under a move: of the return, or else of the probability of success. */
function regretNote(regret, chance) {
  const [total, success] = regret;
  return el("small", {class: total > 0 || success > 0 ? "rv-regret" : "rv-regret none", title: regretWords(regret, chance)},
    total > 0 ? signed(-total) : success > 0 ? `${points(-success)} %` : "best");
}

function points(share) {
  return signed(Math.round(share * 1000) / 10);
}

/* What a move gave away of the highest expected return and of the highest probability of success, and what chance added to that. */
function regretWords([total, success], chance) {
  const changes = [success > 0 && `${points(-success)} points by the move`, chance && `${points(chance)} points by chance`].filter(Boolean);
  const words = total > 0 || success > 0 ? `regret ${+total.toFixed(3)}` : "no regret: a best move";
  return changes.length ? `${words}; probability of success ${changes.join(", ")}` : words;
}

function pivotNote(pivot) {
  if (!pivot) return null;
  return el("p", {class: "rv-pivot"}, el("b", {}, `First mistake: ${pivot.what}.`), pivot.oracle ? ` The oracle from here: ${pivot.oracle}` : "");
}

/* Text whose background says a number for each token, such as its advantage or log-probability. `chosen` is the
   number's name, one of `names`; choose(name) is called when another is wanted. */
function colouredTokens({tokens, scale = {}}, names, chosen, choose) {
  const values = tokens.map(({value}) => typeof value === "object" && value ? value[chosen] : value);
  const largest = scale[chosen] ?? Math.max(...values.filter(Number.isFinite).map(Math.abs), 1e-12);
  const text = el("div", {class: "rv-tokens"}, ...tokens.map((token, i) => {
    const share = Number.isFinite(values[i]) ? Math.max(-1, Math.min(1, values[i] / largest)) : 0;
    const said = typeof token.value === "object" && token.value ? Object.entries(token.value).map((pair) => pair.join(" ")).join(", ") : `${token.value ?? ""}`;
    const span = el("span", {title: said || null, class: share < 0 ? "low" : "high"}, token.text);
    span.style.setProperty("--share", `${Math.round(Math.abs(share) * 55)}%`);
    return span;
  }));
  const choice = names.length > 1 && el("select", {"aria-label": "What the colours say", onchange: (event) => choose(event.target.value)},
    ...names.map((name) => el("option", {selected: name === chosen}, name)));
  const end = (sign, there) => there ? `${sign}${+largest.toPrecision(3)}` : "0";
  const range = `from ${end("−", values.some((value) => value < 0))} to ${end("+", values.some((value) => value > 0))}`;
  const words = `Colour: ${chosen ?? "value"}, ${range}`;
  return el("div", {}, choice, text, el("p", {class: "rv-scale"}, words));
}
