"use strict";
const table = document.getElementById("everybody"), body = table.tBodies[0];
const rows = [...body.rows], field = document.getElementById("filter"), shown = document.getElementById("shown");
const value = (row, n) => row.cells[n].textContent.trim();
const number = text => /^[\d.]/.test(text) ? parseFloat(text) : -1;
[...table.tHead.rows[0].cells].forEach((head, n) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = n === 0 ? (a, b) => value(a, 0).localeCompare(value(b, 0)) : (a, b) => number(value(a, n)) - number(value(b, n));
    rows.sort((a, b) => down ? order(b, a) : order(a, b));
    body.append(...rows);
  });
});
field.addEventListener("input", () => {
  const wanted = field.value.toLowerCase();
  let n = 0;
  for (const row of rows) n += !(row.hidden = !value(row, 0).toLowerCase().includes(wanted));
  shown.textContent = wanted ? `${n} of ${rows.length}` : "";
});
const open = () => { const chosen = document.getElementById(location.hash.slice(1)); if (chosen && chosen.tagName === "DETAILS") chosen.open = true; };
addEventListener("hashchange", open);
open();
