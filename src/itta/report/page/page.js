"use strict";
(() => {
  // "43.8 ± 1.5" -> 43.8, "1,024" -> 1024, "-" and words -> null
  const numberOf = (text) => {
    const found = /^[-+−]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?/i.exec(text.trim());
    return found ? parseFloat(found[0].replace(/,/g, "").replace("−", "-")) : null;
  };
  const words = new Intl.Collator(undefined, { numeric: true });

  const sort = (table, column, down) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => {
      const text = row.cells[column].textContent.trim();
      return { row, text, number: numberOf(text) };
    });
    const numeric = rows.some((r) => r.number !== null);
    const sign = down ? -1 : 1;
    rows.sort((a, b) => {
      if (!numeric) return sign * words.compare(a.text, b.text);
      if (a.number === null || b.number === null) return (a.number === null) - (b.number === null);
      return sign * (a.number - b.number);
    });
    body.append(...rows.map((r) => r.row));
    for (const [i, heading] of [...table.tHead.rows[0].cells].entries()) {
      if (heading.querySelector("button")) {
        heading.setAttribute("aria-sort", i !== column ? "none" : down ? "descending" : "ascending");
      }
    }
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    if (table.tBodies[0].rows.length < 2) continue;
    for (const [i, heading] of [...table.tHead.rows[0].cells].entries()) {
      if (heading.classList.contains("still")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      const downFirst = heading.classList.contains("n");
      button.addEventListener("click", () => {
        const now = heading.getAttribute("aria-sort");
        sort(table, i, now === "none" ? downFirst : now === "ascending");
      });
    }
  }

  // A link into a closed part opens it.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let d = target && target.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();

  // Paper cannot be clicked: open everything to print, and close it again.
  let opened = [];
  const unfold = () => {
    const closed = [...document.querySelectorAll("details:not([open])")];
    opened.push(...closed);
    for (const d of closed) d.open = true;
  };
  const fold = () => {
    for (const d of opened) d.open = false;
    opened = [];
  };
  addEventListener("beforeprint", unfold);
  addEventListener("afterprint", fold);
  matchMedia("print").addEventListener("change", (e) => (e.matches ? unfold() : fold()));
})();
