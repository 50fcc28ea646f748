"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const KEYS = "1234567890abcdefghijklmnopqrstuvwxyz";
  const store = "itta-labels-" + data.plan;
  const byKey = data.classes.length <= KEYS.length;
  let labels = {}; // number of an image -> index of its class, or -1: cannot tell
  let history = []; // numbers, in the order in which they were labelled
  let typed = "";

  try {
    const kept = JSON.parse(localStorage.getItem(store) || "{}");
    const known = new Set(data.images.map((i) => i.number));
    for (const number of kept.history || []) {
      const label = (kept.labels || {})[number];
      if (known.has(number) && Number.isInteger(label) && label >= -1 && label < data.classes.length) {
        labels[number] = label;
        history.push(number);
      }
    }
  } catch { /* no storage, or not ours: begin anew */ }

  const current = () => data.images.find((i) => !(i.number in labels));
  const shown = () => data.classes.map((c, i) => i).filter(
    (i) => byKey || data.classes[i].name.toLowerCase().startsWith(typed));

  function keep() {
    try { localStorage.setItem(store, JSON.stringify({ labels, history })); } catch { /* the file is what counts */ }
  }

  function choose(label) {
    const image = current();
    if (!image) return;
    labels[image.number] = label;
    history.push(image.number);
    typed = "";
    keep();
    draw();
  }

  function undo() {
    if (!byKey && typed) { typed = typed.slice(0, -1); draw(); return; }
    const number = history.pop();
    if (number === undefined) return;
    delete labels[number];
    keep();
    draw();
  }

  const cell = (value) => /[",\n\r]/.test(value) ? '"' + value.replaceAll('"', '""') + '"' : String(value);

  function csv() {
    const lines = [data.columns.join(",")];
    for (const image of data.images) {
      if (!(image.number in labels)) continue;
      const label = labels[image.number] < 0 ? "?" : data.classes[labels[image.number]].cell;
      lines.push([data.plan, String(image.number), image.image, label].map(cell).join(","));
    }
    return lines.join("\n") + "\n";
  }

  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    link.download = "labels.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function draw() {
    const image = current(), done = history.length, all = data.images.length;
    at("progress").max = all;
    at("progress").value = done;
    at("status").textContent = image ? `${done} of ${all} labelled` : `All ${all} labelled. Save the file.`;
    at("picture").hidden = !image;
    if (image) at("picture").src = image.picture;
    at("picture").alt = image ? "The image to label" : "";
    at("name").textContent = image ? image.image.split(/[\\/]/).pop() : ""; // a folder may name the class
    at("typed").hidden = byKey;
    at("typed").textContent = byKey ? "" : `Type the class, then Enter: ${typed || "…"}`;
    at("classes").replaceChildren(...(image ? shown() : []).map((i) => {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      if (byKey) {
        const key = document.createElement("kbd");
        key.textContent = KEYS[i];
        button.append(key, " ");
      }
      button.append(data.classes[i].name);
      button.addEventListener("click", () => choose(i));
      item.append(button);
      return item;
    }));
  }

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s") { event.preventDefault(); save(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const onButton = document.activeElement instanceof HTMLButtonElement;
    if (event.key === "Backspace") { event.preventDefault(); undo(); return; }
    if (event.key === " " && !onButton && (byKey || !typed)) { event.preventDefault(); choose(-1); return; }
    if (event.key === "Enter" && !onButton && !byKey && typed) {
      const found = shown();
      if (found.length) { event.preventDefault(); choose(found[0]); }
      return;
    }
    if (event.key.length !== 1 || (event.key === " " && onButton)) return;
    const key = event.key.toLowerCase();
    if (byKey) {
      const i = KEYS.indexOf(key);
      if (i >= 0 && i < data.classes.length) { event.preventDefault(); choose(i); }
      return;
    }
    if (data.classes.some((c) => c.name.toLowerCase().startsWith(typed + key))) {
      event.preventDefault();
      typed += key;
      draw();
    }
  });
  at("undo").addEventListener("click", undo);
  at("skip").addEventListener("click", () => choose(-1));
  at("save").addEventListener("click", save);
  at("help").textContent = byKey
    ? "Press the key beside a class. Backspace takes the last label back, Space means that you cannot tell."
    : "Type the beginning of a class and press Enter. Backspace takes a letter or the last label back, Space means that you cannot tell.";
  draw();
})();
