/* The viewer of episodes: a list to choose from, the board next to the conversation, one step at a time.

   new Viewer(host, data) fills the element `host`. data:
     board_styles: {name: style}           see board.js
     systems: {name: text}                 system messages, which many episodes share
     fields: [{field, label}, …]           what episodes are chosen by in menus
     filters: [{label, tag?, order?}, …]   buttons; those with the tag, the largest of that order first
     opening: {episode: id, compare?: value}   what is shown and played first; without it the first of the list
     compare_by: field                     episodes of one `pair` that differ in this field can be shown side by side
     episodes: [{id, title, note?, tags: [text], fields: {field: text}, pair?, order?: {name: number}, …}, …]
   An episode also holds, at once or as what load(episode) resolves to:
     board_style: name, system?: name or text, frames: [frame, …], turns: [turn, …] (see board.js and transcript.js),
     facts?: [text, …], ending?: text, failure?: text
   The address of an episode is #episode=ID&step=N&compare=VALUE. */
class Viewer {
  constructor(host, data) {
    Object.assign(this, {host, data, chosen: {}, filter: data.filters?.[0] ?? {label: "All"}, step: 0, compared: ""});
    this.panes = [];
    this.build();
    this.refilter();
    addEventListener("hashchange", () => this.openAddress());
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("pointerdown", (event) => { this.used = host.contains(event.target); });
    if (!this.openAddress() && this.shown.length) this.openFirst(data.opening ?? {});
  }

  /* Play the opening episode as soon as the controls are in sight, unless the reader wants no motion or was quicker. */
  async openFirst({episode, compare = ""}) {
    this.compareMenu.value = this.compared = compare;
    const first = this.shown.find((e) => e.id === episode) ?? this.shown[0];
    await this.open(first, {quiet: true});
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const sight = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      sight.disconnect();
      if (this.current === first && this.step === 0 && !this.controls.timer) this.controls.toggle({quiet: true});
    }, {rootMargin: "0px 0px -30% 0px"});
    sight.observe(this.controls.node);
  }

  build() {
    this.list = new EpisodeList((episode) => this.open(episode));
    this.panesHost = el("div", {class: "rv-panes"});
    this.controls = new Controls(this);
    this.empty = el("p", {class: "rv-empty", hidden: true}, "No episode is of this kind.");
    this.unknown = el("p", {class: "rv-empty", role: "status", hidden: true});
    this.bar = el("div", {class: "rv-bar"});
    this.fillBar();
    this.host.classList.add("rv");
    this.host.replaceChildren(this.bar,
      el("div", {class: "rv-body"}, this.list.node, el("div", {class: "rv-show"}, this.unknown, this.empty, this.controls.node, this.panesHost)));
  }

  fillBar() {
    const {data} = this;
    const menu = ({field, label}) => el("label", {}, el("span", {}, label), el("select", {"data-field": field,
      onchange: (event) => { this.chosen[field] = event.target.value; this.refilter(true); }},
    el("option", {value: ""}, "all"), ...distinct(data.episodes.map((e) => e.fields[field])).map((value) => el("option", {selected: value === this.chosen[field]}, value))));
    const values = data.compare_by ? distinct(data.episodes.map((e) => e.fields[data.compare_by])) : [];
    this.compareMenu = el("select", {"data-field": "compare", onchange: (event) => { this.compared = event.target.value; this.open(this.current); }},
      el("option", {value: ""}, "none"), ...values.map((value) => el("option", {selected: value === this.compared}, value)));
    this.buttons = (data.filters ?? []).map((filter) => el("button", {type: "button", class: "rv-filter",
      onclick: () => { this.filter = filter; this.refilter(true); }}, filter.label, el("span", {class: "rv-count"})));
    this.bar.replaceChildren(
      el("div", {class: "rv-menus"}, ...(data.fields ?? []).map(menu), values.length > 1 && el("label", {}, el("span", {}, "compare with"), this.compareMenu)),
      el("div", {class: "rv-filters", role: "group", "aria-label": "Which episodes"}, ...this.buttons));
  }

  /* Take over the episodes of a page that has grown. Until a reader takes a step, the opening episode is the newest. */
  update(data) {
    Object.assign(this.data, data);
    this.filter = data.filters.find(({label}) => label === this.filter.label) ?? data.filters[0];
    this.current = data.episodes.find(({id}) => id === this.current?.id) ?? this.current;
    this.fillBar();
    this.refilter();
    if (!this.touched && !this.controls.timer && this.shown.length && data.opening?.episode !== this.current?.id) this.openFirst(data.opening ?? {});
  }

  /* Choose the episodes of the list again; open the first if the open one is no longer among them. */
  refilter(open = false) {
    const chosen = this.data.episodes.filter((episode) => Object.entries(this.chosen).every(([field, value]) => !value || episode.fields[field] === value));
    const of = ({tag}) => tag ? chosen.filter((episode) => episode.tags.includes(tag)) : chosen;
    this.buttons.forEach((button, i) => {
      button.lastChild.textContent = of(this.data.filters[i]).length.toLocaleString("en");
      button.setAttribute("aria-pressed", this.data.filters[i] === this.filter);
    });
    const {order} = this.filter;
    this.shown = of(this.filter).slice();
    if (order) this.shown.sort((a, b) => (b.order?.[order] ?? 0) - (a.order?.[order] ?? 0));
    this.list.fill(this.shown, this.current);
    this.empty.hidden = this.shown.length > 0;
    this.controls.node.hidden = this.panesHost.hidden = !this.shown.length;
    if (!this.shown.length) this.controls.stop();
    if (open && this.shown.length && !this.shown.includes(this.current)) this.open(this.shown[0]);
  }

  /* Show an episode, and next to it the other one of the same pair. */
  async open(episode, {step = 0, quiet = false} = {}) {
    if (!episode) return;
    if (!quiet) this.unknown.hidden = true;
    this.current = episode;
    this.controls.stop();
    this.list.choose(episode);
    const other = this.partner(episode);
    const episodes = other ? [episode, other] : [episode];
    const details = await Promise.all(episodes.map((e) => e.frames ? e : this.data.load(e)));
    if (this.current !== episode) return;  // another one was opened meanwhile
    while (this.panes.length > episodes.length) this.panes.pop().node.remove();
    while (this.panes.length < episodes.length) {
      const pane = new Pane(this);
      this.panes.push(pane);
      this.panesHost.append(pane.node);
    }
    this.panesHost.classList.toggle("two", episodes.length > 1);
    this.panes.forEach((pane, i) => pane.fill(episodes[i], details[i]));
    this.steps = Math.max(...this.panes.map((pane) => pane.steps.length));
    this.go(step, {glide: false, quiet});
  }

  /* The episode to show next to this one: the chosen agent's, or any other's where this one is the chosen agent's. */
  partner(episode) {
    const field = this.data.compare_by, own = episode.fields[field];
    if (!this.compared) return undefined;
    return this.data.episodes.find((e) => e.pair === episode.pair && e.fields[field] !== own && (e.fields[field] === this.compared || own === this.compared));
  }

  go(step, {glide = Math.abs(step - this.step) === 1, quiet = false} = {}) {
    if (!this.panes.length) return;  // the first episode is not loaded yet
    this.step = Math.max(0, Math.min(step, this.steps - 1));
    for (const pane of this.panes) pane.show(this.step, glide);
    this.controls.show(this.step, this.steps, this.panes[0].said);
    if (quiet) return;
    this.touched = true;
    history.replaceState(null, "", this.address());
  }

  /* The next or an earlier episode of the list. */
  openNext(offset) {
    const at = this.shown.indexOf(this.current);
    this.open(this.shown[Math.max(0, Math.min(this.shown.length - 1, at + offset))]);
  }

  address() {
    const parts = {episode: this.current.id, step: this.step || "", compare: this.panes.length > 1 ? this.compared : ""};
    return `#${Object.entries(parts).filter(([, value]) => value !== "").map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&")}`;
  }

  /* Open what the address names; false if it names nothing. */
  openAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const episode = this.data.episodes.find((e) => e.id === wanted.get("episode"));
    this.unknown.hidden = Boolean(episode) || !wanted.has("episode");
    this.unknown.textContent = `No such episode: ${wanted.get("episode")}.`;
    if (!episode) return false;
    this.compareMenu.value = wanted.get("compare") ?? "";
    if (this.compareMenu.selectedIndex < 0) this.compareMenu.value = "";  // the address names none of the menu
    this.compared = this.compareMenu.value;
    if (!this.shown.includes(episode)) this.showAll();
    this.open(episode, {step: Math.trunc(wanted.get("step")) || 0}).then(() => this.host.scrollIntoView({block: "start"}));
    return true;
  }

  showAll() {
    this.chosen = {};
    this.filter = this.data.filters?.[0] ?? this.filter;
    for (const menu of this.host.querySelectorAll(".rv-menus select")) if (menu !== this.compareMenu) menu.value = "";
    this.refilter();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.shown.length || !this.handles(event.target)) return;
    const does = {
      ArrowRight: () => this.go(this.step + 1), ArrowLeft: () => this.go(this.step - 1),
      Home: () => this.go(0), End: () => this.go(this.steps - 1),
      j: () => this.openNext(1), k: () => this.openNext(-1), t: () => this.controls.text.click(), " ": () => this.controls.toggle(),
    }[event.key];
    if (!does || (event.key === " " && event.target.closest?.("button, summary, a"))) return;
    event.preventDefault();
    does();
  }

  /* The viewer handles keys while it has the focus, or nothing has and it was clicked last or fills the middle of the
     window. */
  handles(target) {
    if (target.closest?.("select, textarea, input:not([type=range])")) return false;
    if (this.host.contains(target)) return true;
    const {top, bottom} = this.host.getBoundingClientRect();
    return target === document.body && (this.used || (top < innerHeight / 2 && bottom > innerHeight / 2));
  }
}

function distinct(values) {
  return [...new Set(values)].filter((value) => value !== undefined);
}
