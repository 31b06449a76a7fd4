"use strict";
(() => {
  const table = document.getElementById("table");
  if (!table) return;
  const details = JSON.parse(document.getElementById("details").textContent);
  const filter = document.getElementById("filter");
  const rows = [...table.tBodies[0].rows];

  // Every text goes through here: as text, never as markup.
  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  function copyButton(text) {
    const button = element("button", "", "Copy");
    button.type = "button";
    button.addEventListener("click", () => {
      const done = () => { button.textContent = "Copied"; };
      if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => { button.textContent = "Select and copy"; });
      else button.textContent = "Select and copy";
    });
    return button;
  }

  function panel(index) {
    const one = details[index];
    const pairs = [["took", one.seconds], ...(one.ratios || [])];
    const facts = element("dl", "grid", ...pairs.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "mono", value))));
    const cell = element("td", "");
    if (one.message) cell.append(element("pre", "", one.message));
    cell.append(facts, element("div", "command", element("code", "", one.replay), copyButton(one.replay)));
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

  const isOpen = (row) => row.querySelector(".open button").getAttribute("aria-expanded") === "true";

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      // "axis:value", "outcome:fail" and clauses such as mask-3 must match as a whole.
      const text = ` ${row.dataset.search} `;
      const fits = words.every((word) => text.includes(/:|^[a-z]+-\d+$/.test(word) ? ` ${word} ` : word));
      if (!fits && isOpen(row)) toggle(row);
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("shown").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
    document.getElementById("nothing").hidden = shown > 0;
  }

  function ask(text) {
    filter.value = text;
    apply();
    document.getElementById("items").scrollIntoView();
  }

  table.tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-index]");
    if (row && !String(window.getSelection())) toggle(row);
  });
  filter.addEventListener("input", apply);
  document.querySelectorAll("[data-filter]").forEach((one) => {
    one.addEventListener("click", () => ask(one.dataset.filter));
    one.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); ask(one.dataset.filter); }
    });
  });
  // The failing ones are open from the start, as many as are read.
  rows.filter((row) => row.classList.contains("failed")).slice(0, 10).forEach(toggle);
  if (filter.value) apply();
})();
