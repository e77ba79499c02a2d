// Tables whose headings sort their rows, by number where the first cell that is not empty begins with one.
document.addEventListener("DOMContentLoaded", () => {
  const number = (text) => parseFloat(text.replace(/[,\u2212+]/g, (sign) => (sign === "\u2212" ? "-" : "")));
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const body = table.tBodies[0], headings = [...table.querySelectorAll("thead th")];
    if (!body || body.rows.length < 3) continue;
    headings.forEach((heading, column) => {
      const sort = () => {
        const text = (row) => row.cells[column]?.textContent.trim() ?? "";
        const up = heading.ariaSort !== "ascending";
        const rows = [...body.rows];
        const numeric = !isNaN(number(rows.map(text).find(Boolean) ?? ""));
        const order = (a, b) => (numeric ? number(text(a)) - number(text(b)) : text(a).localeCompare(text(b)));
        const blank = (row) => !text(row) || (numeric && isNaN(number(text(row))));
        const sorted = rows.filter((row) => !blank(row)).sort((a, b) => (up ? order(a, b) : order(b, a)));
        headings.forEach((each) => (each.ariaSort = "none"));
        heading.ariaSort = up ? "ascending" : "descending";
        body.append(...sorted, ...rows.filter(blank));
      };
      heading.ariaSort = "none";
      heading.tabIndex = 0;
      heading.addEventListener("click", sort);
      heading.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
  }
});
