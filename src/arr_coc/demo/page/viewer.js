// The viewer: layers of cell values over an image, drawn here so that they follow a slider; cells and terms explain themselves.
window.viewer = {
  opacity: 0.6,
  all: new WeakMap(),  // .viewer element -> its data

  bytes: (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)),

  // 16-bit numbers between the extremes, as `cells.pack` makes them.
  values(layer) {
    const numbers = new Uint16Array(this.bytes(layer.data).buffer), span = layer.high - layer.low || 1;
    return Float64Array.from(numbers, (number) => layer.low + (number / 65535) * span);
  },

  open(element) {
    const data = JSON.parse(element.dataset.cells);
    element.removeAttribute("data-cells");
    const width = +element.dataset.width, height = +element.dataset.height;
    const one = { element, key: data.key, width, height, light: data.light, ramp: this.bytes(data.ramp), split: 0.5 };
    one.states = this.bytes(data.states);
    one.layers = data.layers;
    for (const layer of Object.values(one.layers)) layer.values = this.values(layer);
    let first = 0;
    one.views = data.views.map(([left, top, right, bottom, rows, columns]) => {
      const view = { left, top, right, bottom, rows, columns, first };
      first += rows * columns;
      return view;
    });
    this.all.set(element, one);
    element.querySelectorAll("select.layer").forEach((select) => this.fill(one, select));
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [width, height];
      const pen = canvas.getContext("2d");
      pen.drawImage(image, 0, 0, width, height);
      one.pixels = pen.getImageData(0, 0, width, height).data;
      this.draw(one);
      element.dataset.ready = "";
    };
    image.src = element.dataset.url;
    element.removeAttribute("data-url");
  },

  fill(one, select) {
    const panel = this.panels(one)[+select.dataset.panel];
    const add = (parent, value, text) => {
      const option = document.createElement("option");
      [option.value, option.textContent, option.selected] = [value, text, value === panel.dataset.layer];
      parent.append(option);
    };
    add(select, "picture", "image");
    add(select, "kept", "kept cells");
    for (const kind of ["score", "channel"]) {
      const group = document.createElement("optgroup");
      group.label = kind === "score" ? "scores" : "channels";
      for (const [name, layer] of Object.entries(one.layers)) if (layer.kind === kind) add(group, name, layer.title);
      if (group.children.length) select.append(group);
    }
  },

  panels: (one) => [...one.element.querySelectorAll(".panel")],

  // Values of cells as one number per pixel: the largest where cells overlap, 0 outside all of them.
  plane(one, ofCell) {
    const { width, height } = one, plane = new Float32Array(width * height);
    const places = (length, start, end, cells) => Int32Array.from({ length }, (_, at) => {
      const place = Math.floor((((at + 0.5) / length - start) / (end - start)) * cells);
      return place >= 0 && place < cells ? place : -1;
    });
    for (const view of one.views) {
      const rows = places(height, view.top, view.bottom, view.rows), columns = places(width, view.left, view.right, view.columns);
      for (let y = 0; y < height; y++) {
        if (rows[y] < 0) continue;
        const row = view.first + rows[y] * view.columns;
        for (let x = 0; x < width; x++) {
          if (columns[x] < 0) continue;
          const value = ofCell(row + columns[x]), at = y * width + x;
          if (value > plane[at]) plane[at] = value;
        }
      }
    }
    return plane;
  },

  // One layer over the columns from `start` to `end` of the picture.
  paint(one, name, out, start, end) {
    const { width, height, pixels, ramp } = one, layer = one.layers[name];
    const warm = name === "relevance";
    let plane = null;
    if (name === "kept") plane = this.plane(one, (cell) => one.light[one.states[cell]]);
    else if (layer) {
      const [low, high] = layer.bounds, span = high - low || 1;
      const unit = (cell) => Math.min(1, Math.max(0, (layer.values[cell] - low) / span));
      plane = this.plane(one, warm ? unit : (cell) => 0.12 + 0.88 * unit(cell));
    }
    for (let y = 0; y < height; y++) {
      for (let x = start; x < end; x++) {
        const at = y * width + x, value = plane ? plane[at] : 1;
        const alpha = warm ? Math.sqrt(value) * this.opacity : 0, colour = 3 * Math.round(value * 255);
        for (let c = 0; c < 3; c++) {
          const base = pixels[4 * at + c];
          out[4 * at + c] = warm ? base * (1 - alpha) + ramp[colour + c] * alpha : base * value;
        }
        out[4 * at + 3] = 255;
      }
    }
  },

  draw(one) {
    if (!one.pixels) return;
    const panels = this.panels(one), together = one.element.querySelector("input.split")?.checked;
    panels.forEach((panel, number) => {
      panel.hidden = together && number > 0;
      if (panel.hidden) return;
      const canvas = panel.querySelector("canvas"), pen = canvas.getContext("2d");
      const image = pen.createImageData(one.width, one.height);
      if (together) {
        const middle = Math.round(one.split * one.width);
        this.paint(one, panels[0].dataset.layer, image.data, 0, middle);
        this.paint(one, panels[1].dataset.layer, image.data, middle, one.width);
      } else this.paint(one, panel.dataset.layer, image.data, 0, one.width);
      pen.putImageData(image, 0, 0);
      if (together) {
        pen.fillStyle = "#fff";
        pen.fillRect(Math.round(one.split * one.width) - 1, 0, 3, one.height);
      }
    });
    this.divider(one, together);
    this.caption(one);
  },

  // The divider of two layers on one picture: a slider below it, for the keyboard, and the picture itself, to drag.
  divider(one, together) {
    const panel = this.panels(one)[0];
    let slider = panel.querySelector(".divider");
    if (together && !slider) {
      slider = document.createElement("input");
      Object.assign(slider, { type: "range", min: 0, max: 100, value: 100 * one.split, className: "divider" });
      slider.setAttribute("aria-label", "where the two layers meet");
      slider.addEventListener("input", () => { one.split = slider.value / 100; this.draw(one); });
      panel.querySelector(".stack").after(slider);
    }
    if (slider) {
      slider.hidden = !together;
      slider.value = 100 * one.split;
    }
    one.element.classList.toggle("together", !!together);
  },

  title(one, name) {
    return name === "kept" ? "Kept cells" : name === "picture" ? "Image" : one.layers[name].title;
  },

  about(one, name) {
    if (name === "picture") return "as it was sent";
    if (name !== "kept") return name === "relevance" ? "warm: relevant to the question" : one.layers[name].about;
    const kept = one.states.reduce((sum, state) => sum + (state === 2), 0);
    return `${kept} of ${one.states.length}; dark: not read, darkest: not encoded`;
  },

  // Captions of layers that can change; others keep what the server wrote.
  caption(one) {
    if (!one.element.querySelector("select.layer")) return;
    const panels = this.panels(one), names = panels.map((panel) => panel.dataset.layer);
    const together = one.element.classList.contains("together");
    panels.forEach((panel, number) => {
      const [title, about] = [panel.querySelector("figcaption b"), panel.querySelector("figcaption > span")];
      const text = together ? names.map((name) => this.title(one, name)).join(" | ") : this.title(one, names[number]);
      if (title.textContent.toLowerCase() !== text.toLowerCase()) title.textContent = text;
      about.textContent = together ? "drag the line to move the border" : this.about(one, names[number]);
      panel.querySelector("canvas").setAttribute("aria-label", `${title.textContent}: ${about.textContent}`);
    });
  },

  // New states and relevance, while the budget slider moves.
  update(data) {
    document.querySelectorAll("#ask-pictures .viewer").forEach((element) => {
      const one = this.all.get(element);
      if (!one || one.key !== data.key) return;
      const states = this.bytes(data.states);
      if (states.length !== one.states.length) return;
      one.states = states;
      for (const [name, layer] of Object.entries(data.layers)) {
        if (one.layers[name]) one.layers[name].values = this.values(layer);
      }
      this.draw(one);
    });
  },

  heat(opacity) {
    this.opacity = opacity;
    document.querySelectorAll(".viewer").forEach((element) => this.all.has(element) && this.draw(this.all.get(element)));
  },

  // The cell at a place of the picture (fractions); of overlapping cells the smallest.
  cellAt(one, x, y) {
    let best = null;
    for (const view of one.views) {
      const column = Math.floor(((x - view.left) / (view.right - view.left)) * view.columns);
      const row = Math.floor(((y - view.top) / (view.bottom - view.top)) * view.rows);
      if (column < 0 || row < 0 || column >= view.columns || row >= view.rows) continue;
      const wide = (view.right - view.left) / view.columns, high = (view.bottom - view.top) / view.rows;
      if (!best || wide * high < best.wide * best.high) {
        best = { view, row, column, wide, high, cell: view.first + row * view.columns + column };
      }
    }
    return best;
  },

  // Mark a cell in all panels, and tell its scores and channel values.
  point(one, x, y, near) {
    const found = this.cellAt(one, x, y);
    one.at = found && [x, y];
    one.element.querySelectorAll(".cursor").forEach((cursor) => {
      cursor.hidden = !found;
      if (!found) return;
      const percent = (value) => `${100 * value}%`;
      Object.assign(cursor.style, {
        left: percent(found.view.left + found.column * found.wide), top: percent(found.view.top + found.row * found.high),
        width: percent(found.wide), height: percent(found.high),
      });
    });
    if (!found) return this.hideTip();
    const state = ["not encoded", "encoded, not read", "read"][one.states[found.cell]];
    const rows = Object.values(one.layers).map((layer) => [layer.kind, layer.title, layer.values[found.cell]]);
    this.showTip(near, `row ${found.row + 1}, column ${found.column + 1}: ${state}`, rows);
  },

  tip() {
    let tip = document.getElementById("tip");
    if (!tip) {
      tip = document.createElement("div");
      [tip.id, tip.hidden] = ["tip", true];
      tip.setAttribute("role", "tooltip");
      document.body.append(tip);
    }
    return tip;
  },

  showTip(near, text, rows = []) {
    const tip = this.tip(), head = document.createElement("p");
    head.textContent = text;
    tip.replaceChildren(head);
    for (const kind of ["score", "channel"]) {
      const some = rows.filter((row) => row[0] === kind);
      if (!some.length) continue;
      const list = document.createElement("dl");
      list.className = kind;
      for (const [, name, value] of some) {
        const [term, number] = [document.createElement("dt"), document.createElement("dd")];
        term.textContent = name;
        number.textContent = Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(Math.abs(value) >= 10 ? 1 : 3);
        list.append(term, number);
      }
      tip.append(list);
    }
    tip.hidden = false;
    const gap = 14, box = tip.getBoundingClientRect();
    let left = near.x + gap, top = near.y + gap;
    if (left + box.width > innerWidth - 8) left = Math.max(8, near.x - gap - box.width);
    if (top + box.height > innerHeight - 8) top = Math.max(8, near.y - gap - box.height);
    Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
  },

  hideTip() {
    this.tip().hidden = true;
    document.querySelectorAll(".cursor:not([hidden])").forEach((cursor) => { cursor.hidden = true; });
  },

  async save(button) {
    const name = `arr-coc-${button.dataset.name.replace(/\W+/g, "-")}.png`;
    const source = button.parentElement.querySelector("canvas, .board img");
    let canvas = source;
    if (source.tagName === "IMG") {
      canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [source.naturalWidth, source.naturalHeight];
      canvas.getContext("2d").drawImage(source, 0, 0);
    }
    canvas.toBlob((blob) => arrcoc.save(blob, name), "image/png");
  },
};

{
  const of = (target) => {
    const element = target.closest?.(".viewer canvas")?.closest(".viewer");
    return element && viewer.all.get(element);
  };
  const place = (event) => {
    const area = event.target.getBoundingClientRect();
    return [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height];
  };
  let dragging = null;
  document.addEventListener("pointerdown", (event) => {
    const one = of(event.target);
    if (one?.element.classList.contains("together")) {
      dragging = one;
      event.target.setPointerCapture(event.pointerId);
    }
  });
  document.addEventListener("pointerup", () => { dragging = null; });
  document.addEventListener("pointermove", (event) => {
    const one = of(event.target);
    if (dragging && one === dragging) {
      one.split = Math.min(1, Math.max(0, place(event)[0]));
      viewer.draw(one);
    } else if (one) viewer.point(one, ...place(event), { x: event.clientX, y: event.clientY });
  });
  document.addEventListener("pointerout", (event) => { if (of(event.target)) viewer.hideTip(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") viewer.hideTip();
    const one = of(event.target), step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!one || !step) return;
    event.preventDefault();
    const [x, y] = one.at || [0.5, 0.5], found = viewer.cellAt(one, x, y);
    const inside = (value) => Math.min(0.9999, Math.max(0, value));
    const to = [inside(x + step[0] * (found?.wide || 0.05)), inside(y + step[1] * (found?.high || 0.05))];
    const area = event.target.getBoundingClientRect();
    viewer.point(one, ...to, { x: area.left + to[0] * area.width, y: area.top + to[1] * area.height });
  });
  // Terms and tokens: their meaning on hover, focus or touch.
  const explain = (event) => {
    const term = event.target.closest?.("[data-tip]");
    if (!term || !term.dataset.tip) return;
    const area = term.getBoundingClientRect();
    viewer.showTip({ x: area.left, y: area.bottom - 6 }, term.dataset.tip);
  };
  for (const name of ["mouseover", "focusin"]) document.addEventListener(name, explain);
  for (const name of ["mouseout", "focusout"]) {
    document.addEventListener(name, (event) => { if (event.target.closest?.("[data-tip]")) viewer.hideTip(); });
  }
  for (const name of ["wheel", "touchmove"]) document.addEventListener(name, () => viewer.hideTip(), { passive: true });
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button.save");
    if (button) viewer.save(button);
  });
  document.addEventListener("change", (event) => {
    const one = viewer.all.get(event.target.closest?.(".viewer"));
    if (!one) return;
    if (event.target.matches("select.layer")) viewer.panels(one)[+event.target.dataset.panel].dataset.layer = event.target.value;
    viewer.draw(one);
  });
  // What the server sends is drawn as it arrives.
  const arrived = () => {
    document.querySelectorAll(".viewer[data-cells]").forEach((element) => viewer.open(element));
    document.querySelectorAll(".live[data-live]").forEach((element) => {
      const data = JSON.parse(element.dataset.live);
      element.removeAttribute("data-live");
      viewer.update(data);
    });
  };
  new MutationObserver(arrived).observe(document.documentElement, { childList: true, subtree: true });
}
