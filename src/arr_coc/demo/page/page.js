window.arrcoc = {
  // A link keeps what belongs to the page itself, such as its theme.
  visit(query) {
    if (!query) return;
    const kept = [...new URLSearchParams(location.search)].filter(([name]) => name.startsWith("__"));
    const wanted = new URLSearchParams(query);
    for (const [name, value] of kept) wanted.set(name, value);
    history.replaceState(null, "", "?" + wanted.toString());
  },

  link(query) {
    return location.origin + location.pathname + (query || location.search);
  },

  // Only pages from this machine or by https may use the clipboard; elsewhere a selected field does.
  async copy(text, id) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch (error) {
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      done = document.execCommand("copy");
      field.remove();
    }
    const button = document.getElementById(id);
    if (!button) return;
    const label = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = done ? "Copied" : "Not allowed here";
    setTimeout(() => { button.textContent = label; }, 1500);
  },

  save(text, name) {
    const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  },

  heat(percent) {
    document.documentElement.style.setProperty("--heat", percent / 100);
  },

  // The stop that a slider stands on, in bold.
  stop(name, number) {
    document.querySelectorAll(`#${name}-ticks span`).forEach((tick, at) => {
      tick.style.fontWeight = at === number ? "bold" : "";
      if (at === number) document.querySelector(`#${name}-stop input[type=range]`)?.setAttribute("aria-valuetext", tick.textContent);
    });
  },

  press(channel) {
    document.querySelectorAll(".tile").forEach((tile) => {
      tile.setAttribute("aria-pressed", tile.dataset.channel === channel);
    });
  },

  theme() {
    const dark = document.body.classList.toggle("dark");
    const wanted = new URLSearchParams(location.search);
    wanted.set("__theme", dark ? "dark" : "light");
    history.replaceState(null, "", "?" + wanted.toString());
  },

  // A picture to click on or to draw a box on, and tiles to choose from. `element` stays, what is inside comes and goes.
  board(element, trigger) {
    let start = null;
    const at = (board, event) => {
      const area = board.getBoundingClientRect();
      const inside = (value) => Math.min(1, Math.max(0, value));
      return [inside((event.clientX - area.left) / area.width), inside((event.clientY - area.top) / area.height)];
    };
    const frame = (board, a, b) => {
      let drawn = board.querySelector(".drawn.new");
      if (!drawn) {
        board.querySelectorAll(".drawn").forEach((old) => old.remove());
        drawn = document.createElement("i");
        drawn.className = "drawn new";
        board.append(drawn);
      }
      const percent = (value) => 100 * value + "%";
      drawn.style.left = percent(Math.min(a[0], b[0]));
      drawn.style.top = percent(Math.min(a[1], b[1]));
      drawn.style.width = percent(Math.abs(a[0] - b[0]));
      drawn.style.height = percent(Math.abs(a[1] - b[1]));
    };
    element.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (tile) trigger("select", { channel: tile.dataset.channel });
      const board = event.target.closest(".board.point");
      if (board) trigger("select", { point: at(board, event) });
    });
    element.addEventListener("pointerdown", (event) => {
      const board = event.target.closest(".board.box");
      if (!board) return;
      start = at(board, event);
      board.setPointerCapture(event.pointerId);
      frame(board, start, start);
    });
    element.addEventListener("pointermove", (event) => {
      const board = event.target.closest(".board.box");
      if (board && start) frame(board, start, at(board, event));
    });
    element.addEventListener("pointerup", (event) => {
      const board = event.target.closest(".board.box");
      if (!board || !start) return;
      const end = at(board, event), width = +board.dataset.width, height = +board.dataset.height;
      const box = [Math.min(start[0], end[0]) * width, Math.min(start[1], end[1]) * height,
                   Math.max(start[0], end[0]) * width, Math.max(start[1], end[1]) * height];
      start = null;
      if (box[2] - box[0] >= 2 && box[3] - box[1] >= 2) trigger("select", { box });
    });
  },
};

// Sliders tell that they were let go only when a pointer did so: keys count, too.
document.addEventListener("keyup", (event) => {
  if (event.target.matches?.("input[type=range]") && /^(Arrow|Home|End|Page)/.test(event.key)) {
    event.target.dispatchEvent(new PointerEvent("pointerup", { bubbles: true }));
  }
});
