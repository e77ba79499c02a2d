/* Boards as pictures.

   A style says how the boards of a game are drawn:
     {kind: "grid", cells: {symbol: [sprite, …]}}   a sprite is the id of a symbol in tiles.svg without "tile-";
                                                    "*name" is a piece, which glides when it moves; its kind is
                                                    its name up to ":"; "@x" writes the character x
     {kind: "arms"}                                 a line of the board is the name of an arm
     {kind: "text"}                                 the board as it is written
   A frame is {board: text, action?: id, reward?: number, note?: text}: a board, and the action that led to it. */
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

class Board {
  /* host: the element that is filled; style: see above, of the episode that is shown. */
  constructor(host) {
    this.host = host;
    this.plain = false;
  }

  /* Draw frames[at]; gliding is for a board that follows the one that is shown. */
  show(style, frames, at, glide) {
    const frame = frames[at];
    const kind = this.plain ? "text" : style.kind;
    const label = `The board as text:\n${frame.board}`;
    if (kind === "grid") {
      const rows = frame.board.split("\n").map((row) => [...row]);
      const size = `${rows.length}x${Math.max(...rows.map((row) => row.length))}`;
      if (this.drawn !== style || this.size !== size) this.layOut(style, rows, size), glide = false;
      this.svg.classList.toggle("glide", glide);
      this.place(style, rows);
      this.svg.setAttribute("aria-label", label);
      this.title.textContent = label;
      return;
    }
    this.drawn = null;
    if (kind === "arms") {
      this.host.replaceChildren(arms(frames, at, label));
      return;
    }
    const text = document.createElement("pre");
    text.className = "rv-text";
    text.textContent = frame.board;
    this.host.replaceChildren(text);
  }

  layOut(style, rows, size) {
    const width = Math.max(...rows.map((row) => row.length));
    this.drawn = style;
    this.size = size;
    this.ground = svg("g");
    this.pieces = svg("g");
    this.svg = svg("svg", {viewBox: `0 0 ${width * 100} ${rows.length * 100}`, role: "img", class: "rv-grid"},
      this.title = svg("title"), this.ground, this.pieces);
    this.svg.style.setProperty("--ratio", width / rows.length);
    this.on = new Map();
    this.movers = [];
    this.host.replaceChildren(this.svg);
  }

  place(style, rows) {
    const wanted = [];
    rows.forEach((row, y) => row.forEach((symbol, x) => {
      const sprites = style.cells[symbol] ?? [`@${symbol}`];
      this.paint(x, y, sprites.filter((name) => !name.startsWith("*")));
      for (const name of sprites) if (name.startsWith("*")) wanted.push({name: name.slice(1), x, y});
    }));
    this.move(wanted);
  }

  /* What lies still in a cell; drawn again only where it changed. */
  paint(x, y, names) {
    const key = `${x},${y}`, painted = names.join();
    if (this.on.get(key)?.painted === painted) return;
    const cell = svg("g", {}, ...names.map((name) => sprite(name, x * 100, y * 100)));
    if (this.on.has(key)) this.on.get(key).cell.replaceWith(cell); else this.ground.append(cell);
    this.on.set(key, {painted, cell});
  }

  /* Pieces: each takes the nearest of its kind from the board before. */
  move(wanted) {
    const kind = (name) => name.split(":")[0];
    const left = [...this.movers];
    const distance = (a, b) => Math.abs(a.x - b.x) + Math.abs(a.y - b.y);
    const taken = new Map();
    const pairs = wanted.flatMap((want) => left.filter((old) => kind(old.name) === kind(want.name))
      .map((old) => ({want, old, far: distance(want, old)}))).sort((a, b) => a.far - b.far);
    for (const {want, old} of pairs) {
      if (taken.has(want) || !left.includes(old)) continue;
      taken.set(want, old);
      left.splice(left.indexOf(old), 1);
    }
    for (const old of left) old.node.remove();
    this.movers = wanted.map((want) => {
      const node = taken.get(want)?.node ?? svg("g", {class: "rv-piece"});
      if (taken.get(want)?.name !== want.name) node.replaceChildren(sprite(want.name.replace(":", "-"), 0, 0));
      if (!node.parentNode) this.pieces.append(node);
      node.style.transform = `translate(${want.x * 100}px, ${want.y * 100}px)`;
      return {...want, node};
    });
  }
}

function sprite(name, x, y) {
  // A little larger than its cell, so that no seam shows between two where cells are no whole number of pixels.
  if (!name.startsWith("@")) return svg("use", {href: `#tile-${name}`, x, y, width: 100.8, height: 100.8});
  const letter = svg("text", {x: x + 50, y: y + 52, class: "rv-letter"});
  letter.textContent = name.slice(1);
  return svg("g", {}, svg("rect", {x: x + 1, y: y + 1, width: 98, height: 98, rx: 8, class: "rv-cell"}), letter);
}

/* Two or more machines with their names; below each what it paid so far. */
function arms(frames, at, label) {
  const names = frames[at].board.split("\n");
  const pulls = frames.slice(1, at + 1);
  const picture = svg("svg", {viewBox: `0 0 ${names.length * 180} 190`, role: "img", "aria-label": label, class: "rv-arms"}, svg("title", {}, label));
  names.forEach((name, arm) => {
    const pays = pulls.filter((frame) => frame.action === arm).map((frame) => frame.reward);
    const last = pulls.length > 0 && pulls.at(-1).action === arm;
    const machine = svg("g", {transform: `translate(${arm * 180} 0)`, class: last ? "rv-arm pulled" : "rv-arm"});
    machine.append(svg("rect", {x: 10, y: 8, width: 150, height: 174, rx: 14, class: "rv-arm-body"}));
    const lines = name.length > 12 ? name.split(/(?<=[a-z])(?=[A-Z])|(?<=\s)/) : [name];
    const middle = Math.ceil(lines.length / 2);
    const shown = lines.length > 1 ? [lines.slice(0, middle).join(""), lines.slice(middle).join("")] : lines;
    shown.forEach((line, i) => machine.append(words(85, 44 + 20 * i - 10 * (shown.length - 1), line, "rv-arm-name")));
    machine.append(svg("rect", {x: 30, y: 72, width: 110, height: 58, rx: 8, class: "rv-arm-window"}));
    machine.append(words(85, 102, pays.length ? `${+pays.at(-1).toFixed(3)}` : "?", "rv-arm-pay"));
    const sum = pays.reduce((a, b) => a + b, 0);
    const said = pays.length ? `pulled ${pays.length === 1 ? "once" : `${pays.length} times, ${+sum.toFixed(3)} in all`}` : "not pulled";
    machine.append(words(85, 156, said, "rv-arm-note"));
    machine.append(svg("path", {d: last ? "M160 100h10v42" : "M160 100h10V58", class: "rv-lever"}));
    machine.append(svg("circle", {cx: 170, cy: last ? 146 : 54, r: 8, class: "rv-lever-ball"}));
    picture.append(machine);
  });
  return picture;
}

function words(x, y, text, style) {
  const node = svg("text", {x, y, class: style});
  node.textContent = text;
  return node;
}
