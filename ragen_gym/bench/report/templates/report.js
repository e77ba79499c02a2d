/* Fills the viewer: the episodes are in blocks of gzip in base64, which are opened when they are needed. */
async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (character) => character.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
}

const opened = new Map();
let viewer;

function block(number) {
  if (!opened.has(number)) opened.set(number, unpack(`episodes-${number}`));
  return opened.get(number);
}

(async () => {
  const host = document.getElementById("viewer");
  if (!("DecompressionStream" in window)) {
    host.replaceChildren(el("p", {class: "rv-empty"}, "This browser is too old for the viewer, which needs DecompressionStream. All numbers are in the tables below."));
    return;
  }
  const data = await unpack("episodes-index");
  data.load = async (episode) => (await block(episode.block))[episode.at];
  viewer = new Viewer(host, data);
})();
