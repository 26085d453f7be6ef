// What the page does without the server: its links and history, stale results, and pictures to click or draw on.
window.arrcoc = {
  shown: {},  // the link of the result that each tab shows
  runs: {},   // the settings that it was made with
  loaded: false,
  limit: Infinity,
  target: null,     // the link that Back or Forward leads to, until the user asks for something else
  step: 0,          // the number of the last such press
  restored: 0,      // the press whose settings the page last got from the server
  queued: 0,        // the press that a result was asked for
  waiting: false,   // whether the server was asked for settings and has not answered
  again: false,     // whether another press came meanwhile

  // The address bar shows the link of the last result. Another tab, image or question is a new entry of the history.
  visit(query) {
    if (!query) return;
    if (this.target !== null && query !== this.target) return this.settle(query);  // Back was pressed meanwhile
    const wanted = new URLSearchParams(query), now = new URLSearchParams(location.search);
    const before = now.has("question") || now.has("image") ? now : new URLSearchParams(this.shown[now.get("tab") || "ask"] || "");
    const same = ["tab", "image", "question"].every((name) => !before.has(name) || before.get(name) === wanted.get(name));
    this.note(query);
    this.put(wanted, !same);
  },

  // A result was shown while the page went back. Another press may have come first: then it is not what the user wants.
  settle(query) {
    if (!query) return;
    this.note(query);
    const last = this.restored === this.step && this.queued !== this.step;
    if (last && this.target !== null && query !== this.target) this.restore();
  },

  isShown() {
    return this.shown[new URLSearchParams(this.target).get("tab") || "ask"] === this.target;
  },

  // One press at a time is with the server: answers that come in another order would leave the settings of an earlier one.
  restore() {
    this.again = this.waiting;
    if (this.waiting) return;
    this.waiting = true;
    this.step += 1;
    this.wasShown = this.isShown();
    this.trigger("select", { query: this.target, shown: this.shown, step: this.step });
  },

  // The server sent the settings of a press.
  receive(step) {
    this.restored = +step;
    this.waiting = false;
    if (this.again) this.restore();
  },

  note(query) {
    if (query) this.shown[new URLSearchParams(query).get("tab")] = query;
  },

  put(wanted, isNew) {
    const theme = new URLSearchParams(location.search).get("__theme");  // belongs to the page itself
    if (theme) wanted.set("__theme", theme);
    const address = "?" + wanted.toString();
    if (address === location.search) return;
    if (isNew) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  },

  // A tab was opened, by a click or by a link. Before the link is read, gradio opens the first one.
  open(tab) {
    if (!this.loaded) return tab;
    if (this.restored !== this.step) return tab;  // not by the user
    document.documentElement.dataset.tab = tab;
    if ((new URLSearchParams(location.search).get("tab") || "ask") !== tab) {
      this.put(new URLSearchParams(this.shown[tab] || "?tab=" + tab), true);
    }
    return tab;
  },

  start(tab) {
    this.loaded = true;
    document.documentElement.dataset.tab = tab;
  },

  // Back, and files that are too large, reach the server through a hidden component.
  bridge(trigger, limit) {
    this.limit = limit;
    this.trigger = trigger;
    if (this.bridged) return;
    this.bridged = true;
    window.addEventListener("popstate", () => {
      const wanted = new URLSearchParams(location.search);
      wanted.delete("__theme");
      this.target = "?" + wanted.toString();
      document.documentElement.dataset.tab = wanted.get("tab") || "ask";
      this.restore();
    });
    const refuse = (event, files) => {
      const large = [...(files || [])].find((file) => file.size > this.limit);
      if (!large || !event.target.closest?.("#picture")) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      if (event.target.type === "file") event.target.value = "";
      this.touch();
      this.trigger("input", { name: large.name, size: large.size });
    };
    document.addEventListener("change", (event) => event.target.type === "file" && refuse(event, event.target.files), true);
    document.addEventListener("drop", (event) => refuse(event, event.dataTransfer?.files), true);
    document.addEventListener("paste", (event) => refuse(event, event.clipboardData?.files), true);
  },

  // Stale results. `places`: which of the values a result depends on.
  sign: (values, places) => JSON.stringify(places.map((place) => values[place])),

  // After Back: only the last press starts a run, and only one.
  beginRestored(tab, values, places) {
    if (this.restored !== this.step || this.queued === this.step) return ["", ...values];
    if (!tab && this.wasShown && !this.isShown()) this.restore();  // it was replaced while the server was asked
    if (!tab) return ["", ...values];
    this.queued = this.step;
    return [tab, ...this.begin(tab, values, places, true)];
  },

  // What the user starts ends a way back. `opened`: a tab that runs because it was opened, perhaps by Back itself.
  begin(tab, values, places, opened) {
    if (!opened) this.target = null;
    if (places) {
      this.runs[tab] = this.sign(values, places);
      if (tab === "ask") this.runs.pictures = this.runs[tab];
      this.mark(tab, false);
      if (tab === "ask") this.mark("pictures", false);
    }
    return values;
  },

  preview(tab, values, ask, knowing) {
    if (tab === "ask" && this.runs.ask) {
      this.runs.pictures = this.sign(values, ask);
      this.mark("pictures", false);
    }
    if (tab === "knowing") this.begin(tab, values, knowing);
  },

  check(values, places) {
    for (const [tab, some] of Object.entries(places)) {
      const now = this.sign(values, some);
      if (this.runs[tab]) this.mark(tab, this.runs[tab] !== now);
      if (tab === "ask" && this.runs.pictures) this.mark("pictures", this.runs.pictures !== now);
    }
  },

  // Another image: nothing that is shown is about it.
  touch() {
    for (const name of Object.keys(this.runs)) {
      this.runs[name] = "another image";
      this.mark(name, true);
    }
  },

  mark(name, stale) {
    if (name === "pictures") document.getElementById("ask-viewer")?.classList.toggle("stale", stale);
    else document.documentElement.classList.toggle(`stale-${name}`, stale);
  },

  // The switch and the slider that an exact budget stands for, and its text.
  budget(name, text, stop, stops) {
    const wanted = (text || "").trim().toLowerCase() || "auto";
    const readout = document.getElementById(`${name}-readout`);
    if (readout) readout.textContent = wanted === "auto" ? "" : wanted;
    const slider = document.querySelector(`#${name}-stop input[type=range]`);
    slider?.setAttribute("aria-valuetext", wanted);
    document.getElementById(`${name}-stop`)?.classList.toggle("idle", wanted === "auto");
    return [wanted === "auto", stops.includes(wanted) ? stops.indexOf(wanted) : stop];
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

  save(blob, name) {
    const address = URL.createObjectURL(blob);
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  },

  saveText(text, name) {
    this.save(new Blob([text], { type: "application/json" }), name);
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

  // A picture to click on or to draw a box on, and buttons to choose from. `element` stays, what is inside comes and goes.
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
      const button = event.target.closest("[data-channel], [data-question], [data-budget]");
      if (button) trigger("select", { ...button.dataset });
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

document.documentElement.dataset.tab = new URLSearchParams(location.search).get("tab") || "ask";

// Sliders tell that they were let go only when a pointer did so: keys count, too.
document.addEventListener("keyup", (event) => {
  if (event.target.matches?.("input[type=range]") && /^(Arrow|Home|End|Page)/.test(event.key)) {
    event.target.dispatchEvent(new PointerEvent("pointerup", { bubbles: true }));
  }
});
