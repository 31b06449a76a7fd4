"use strict";
(() => {
  const table = document.getElementById("table");
  if (!table) return;
  const details = JSON.parse(document.getElementById("details").textContent);
  const body = table.tBodies[0];
  const filter = document.getElementById("filter");
  const rows = [...body.rows];

  // Every text goes through here: as text, never as markup.
  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  const pairs = (list) => element("dl", "grid", ...list.filter((pair) => pair[1] !== "").map(([name, value]) =>
    element("div", "", element("dt", "", name), element("dd", "mono", value))));

  function reason(one) {
    const made = element("div", "reason", element("code", "", one.code), one.message || one.code);
    if (one.hint) made.append(` (${one.hint})`);
    if (one.source) made.append(element("span", "from", `  ${one.source}`));
    return made;
  }

  function candidate(one) {
    const name = element("td", "who", one.name, " ", element("span", "version", one.version));
    if (one.tier === "reference") name.append(element("span", "version", " reference"));
    const state = element("td", "state", element("span", one.status, one.status));
    const why = element("td", "why", ...one.reasons.map(reason), ...one.notes.map((note) => element("div", "", note)));
    return element("tr", "", element("td", "number", one.rank), name, state, element("td", "", one.stage), why);
  }

  function grid(heads, lines) {
    const head = element("thead", "", element("tr", "", ...heads.map((text) => {
      const cell = element("th", "", text);
      cell.scope = "col";
      return cell;
    })));
    return element("table", "", head, element("tbody", "", ...lines));
  }

  function panel(index) {
    const one = details[index];
    const cell = element("td", "", element("h3", "", "Decision"), pairs(one.facts), element("h3", "", "Request"),
      pairs(one.request), element("h3", "", "Candidates"),
      grid(["Rank", "Backend", "Status", "Stage", "Why"], one.candidates.map(candidate)));
    if (one.nearest.length) {
      cell.append(element("h3", "", "Would fit after"), grid(["Backend", "Smallest change"], one.nearest.map(
        ([name, change]) => element("tr", "", element("td", "who", name), element("td", "mono why", change)))));
    }
    cell.colSpan = table.tHead.rows[0].cells.length;
    const row = element("tr", "detail", cell);
    row.id = `detail-${index}`;
    return row;
  }

  function toggle(row) {
    const button = row.querySelector(".open button");
    const opened = row.nextElementSibling;
    if (opened && opened.classList.contains("detail")) {
      opened.remove();
      button.setAttribute("aria-expanded", "false");
      button.removeAttribute("aria-controls");
    } else {
      const made = panel(Number(row.dataset.index));
      row.after(made);
      button.setAttribute("aria-expanded", "true");
      button.setAttribute("aria-controls", made.id);
    }
  }

  function close(row) {
    if (row.querySelector(".open button").getAttribute("aria-expanded") === "true") toggle(row);
  }

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      // A word with a colon is "backend:code" and must match as a whole.
      const text = ` ${row.dataset.search} `;
      const fits = words.every((word) => text.includes(word.includes(":") ? ` ${word} ` : word));
      if (!fits) close(row);
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("shown").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
    document.getElementById("nothing").hidden = shown > 0;
  }

  function sort(head) {
    const column = head.cellIndex;
    const numeric = head.classList.contains("number");
    const falling = head.getAttribute("aria-sort") === (numeric ? "descending" : "ascending") ? !numeric : numeric;
    const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
    const compare = numeric ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b), "en", { numeric: true });
    rows.forEach(close);
    rows.sort((a, b) => (falling ? -compare(a, b) : compare(a, b)));
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    body.append(...rows);
  }

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-index]");
    if (row && !String(window.getSelection())) toggle(row);
  });
  table.tHead.addEventListener("click", (event) => {
    if (event.target.closest("button")) sort(event.target.closest("th"));
  });
  filter.addEventListener("input", apply);
  document.querySelectorAll("[data-filter]").forEach((button) => button.addEventListener("click", () => {
    filter.value = button.dataset.filter;
    apply();
    document.getElementById("decisions").scrollIntoView();
  }));
  if (filter.value) apply();
})();
