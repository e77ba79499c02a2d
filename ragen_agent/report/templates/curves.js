/* The values under the pointer: all charts show the same iteration, each in the line below it. */
async function bindCurves() {
  if (!("DecompressionStream" in window)) return;
  const readouts = await unpack("curves-data");
  const charts = [...document.querySelectorAll(".chart")].map((node) => ({
    node, area: node.querySelector("svg svg"), cursor: node.querySelector(".cursor"), readout: node.querySelector(".readout"),
    ...readouts[node.dataset.name],
  }));
  const nearest = (pairs, iteration) => pairs.reduce((best, pair) => Math.abs(pair[0] - iteration) < Math.abs(best[0] - iteration) ? pair : best);

  function show(iteration) {
    for (const chart of charts) {
      const values = iteration === null ? [] : chart.places.map(([colour, pairs]) => [colour, nearest(pairs, iteration)]);
      chart.cursor.setAttribute("visibility", values.length ? "visible" : "hidden");
      if (!values.length) {
        chart.readout.replaceChildren();
        continue;
      }
      const at = values.map(([, [place]]) => place).reduce((best, place) => Math.abs(place - iteration) < Math.abs(best - iteration) ? place : best);
      const x = 1000 * (at - 1) / Math.max(1, chart.last - 1);
      chart.cursor.setAttribute("x1", x);
      chart.cursor.setAttribute("x2", x);
      chart.readout.replaceChildren(`iteration ${at}`, ...values.filter(([, [place]]) => place === at).flatMap(([colour, [, said]]) =>
        [" ", el("span", {class: `dot a${colour}`}), el("b", {}, said)]));
    }
  }

  for (const chart of charts) {
    chart.node.addEventListener("pointermove", (event) => {
      const {left, right} = chart.area.getBoundingClientRect();
      const share = Math.max(0, Math.min(1, (event.clientX - left) / (right - left)));
      show(1 + share * (chart.last - 1));
    });
    chart.node.addEventListener("pointerleave", () => show(null));
  }
}

bindCurves();
document.addEventListener("page-grown", bindCurves);  // its charts are new ones
