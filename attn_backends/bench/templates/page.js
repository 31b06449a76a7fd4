"use strict";
for (const button of document.querySelectorAll("button[data-backend]")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const drawn of document.querySelectorAll("svg g[data-backend]")) {
      if (drawn.dataset.backend === button.dataset.backend) drawn.classList.toggle("off", !shown);
    }
  });
}
