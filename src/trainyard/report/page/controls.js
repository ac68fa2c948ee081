// Hands on the timeline: keys, wheel, drag, search, legend, help.

const KEYS = [
  ["W  S", "zoom in, out"], ["A  D", "pan left, right"], ["F", "fit the whole timeline"], ["↑  ↓", "select the rank above, below (timeline focused)"],
  ["/", "search by name; Enter for the next match, Shift+Enter for the one before"], ["Esc", "close: search, selection, this help"], ["?", "this help"],
  ["wheel", "zoom at the pointer; with Shift, scroll the ranks"], ["drag", "pan"], ["click", "select a slice and its rank; double-click to zoom to it"],
];

/** Adds the legend and the search box to `bar`, and connects pointer and keys to the timeline `line` (a `Line`). */
function attachControls(line, bar) {
  const search = searchBox(line);
  bar.append(legendKeys(line), search);
  attachPointer(line);
  attachKeys(line, search.querySelector("input"), helpDialog());
}

/** The legend as buttons: selecting a label dims the slices of the others. */
function legendKeys(line) {
  const list = el("div", { class: "legend", role: "group", "aria-label": "Kinds; select one to dim the others" });
  const used = new Set(line.packed.looks);
  line.packed.legend.forEach(({ label, colour }, look) => {
    if (!used.has(look)) return;
    const dot = el("i", { "aria-hidden": "true" });
    const key = el("button", { type: "button", onclick: () => setState({ kind: state.kind === label ? "" : label }) }, dot, label);
    const show = () => {
      dot.style.background = css(tuned(colour, 1.9));
      key.setAttribute("aria-pressed", String(state.kind === label));
    };
    watch(show);
    darkWanted.addEventListener("change", show);
    show();
    list.append(key);
  });
  return list;
}

/** The search field, with the number and total time of the slices that match. */
function searchBox(line) {
  const input = el("input", { type: "search", placeholder: "Search names", "aria-label": "Search the timeline by name", spellcheck: "false", autocomplete: "off" });
  const found = el("output", {});
  const show = () => {
    if (input.value !== state.q) input.value = state.q;
    if (!state.q) return (found.textContent = "");
    const { counts, lengths } = totals(line.lanes, line.names.length, -Infinity, Infinity);
    let [count, ns] = [0, 0];
    counts.forEach((many, kind) => {
      if (!line.matches(kind)) return;
      count += many;
      ns += lengths[kind];
    });
    return (found.textContent = count ? `${plural(count, "match")} · ${time(ns)}` : "no match");
  };
  input.addEventListener("input", () => setState({ q: input.value }));
  input.addEventListener("keydown", (event) => event.key === "Enter" && nextMatch(line, event.shiftKey ? -1 : 1));
  watch((changed) => (changed.includes("q") || changed.includes("kind")) && show());
  show();
  return el("label", { class: "search" }, found, input);
}

/** Chooses the match after (or before) the chosen slice in time, and brings it into view. */
function nextMatch(line, way) {
  const key = ({ lane, index }) => [lane.starts[index], line.lanes.indexOf(lane)];
  const order = (a, b) => a[0] - b[0] || a[1] - b[1];
  const now = line.chosen ? key(line.chosen) : [way > 0 ? -Infinity : Infinity, 0];
  let best = null;
  const fits = line.names.map((_, kind) => line.matches(kind));
  line.lanes.forEach((lane, number) => {
    for (let index = 0; index < lane.starts.length; index += 1) {
      if (!fits[lane.kinds[index]]) continue;
      const here = [lane.starts[index], number];
      if (order(here, now) * way > 0 && (!best || order(here, best.key) * way < 0)) best = { lane, index, key: here };
    }
  });
  if (best) choose(line, best, { follow: true });
}

/** Selects a slice ({lane, index}, or null for none), describes it below the timeline; `follow`: zooms to it if needed. */
function choose(line, slice, { follow = false } = {}) {
  line.chosen = slice;
  line.picked.replaceChildren(...(slice ? line.about(slice).map((text, at) => el(at ? "span" : "code", {}, text)) : []));
  if (!slice) return line.ask();
  say(line.about(slice).join(", "));
  const { lane, index } = slice;
  const span = line.to - line.from;
  const hidden = lane.starts[index] < line.from || lane.ends[index] > line.to;
  setState({ rank: lane.rank });
  if (follow && (hidden || (lane.ends[index] - lane.starts[index]) * line.inner < span * 4)) {
    const wide = Math.min(span, Math.max((lane.ends[index] - lane.starts[index]) * 20, 1000));
    const middle = (lane.starts[index] + lane.ends[index]) / 2;
    line.show(middle - wide / 2, middle + wide / 2);
  }
  return line.ask();
}

/** Zooms by the wheel, pans by dragging, selects by a click, zooms to a slice by a double click, and shows tooltips. */
function attachPointer(line) {
  const { canvas } = line;
  let drag = null;
  let scrolled = 0;
  let wheeled = 0;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  addEventListener("scroll", () => (scrolled = performance.now()), { passive: true });
  canvas.addEventListener("wheel", (event) => {
    const now = performance.now();
    // A page that is being scrolled goes on scrolling when the timeline comes under the pointer.
    if (event.ctrlKey === false && now - scrolled < 350 && now - wheeled > 350) return;
    if (event.shiftKey) line.scroll += event.deltaY || event.deltaX;
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) line.pan(event.deltaX / line.inner);
    else if (event.deltaY > 0 && state.from === null) return;
    else line.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0028), line.ns(point(event)[0]));
    wheeled = now;
    event.preventDefault();
    line.scroll = Math.max(0, Math.min(line.scroll, line.tall - line.height));
    line.ask();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = point(event);
    if (event.button === 0) drag = { x, y, from: line.from, to: line.to, scroll: line.scroll, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = point(event);
    if (drag) {
      if (!drag.moved && Math.hypot(x - drag.x, y - drag.y) > 3) {
        drag.moved = true;
        canvas.setPointerCapture(event.pointerId);
      }
      if (!drag.moved) return;
      const by = ((x - drag.x) / line.inner) * (drag.to - drag.from);
      if (state.from !== null) line.show(drag.from - by, drag.to - by);
      line.scroll = Math.max(0, Math.min(drag.scroll - (y - drag.y), line.tall - line.height));
      line.ask();
      return;
    }
    line.hover = line.at(x, y);
    if (line.hover) showTip(line.about(line.hover), event.clientX, event.clientY);
    else hideTip();
    line.ask();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) choose(line, line.at(...point(event)));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => {
    line.hover = null;
    hideTip();
    line.ask();
  });
  canvas.addEventListener("dblclick", (event) => {
    const slice = line.at(...point(event));
    if (slice) line.show(...[[slice.lane.starts[slice.index], -0.5], [slice.lane.ends[slice.index], 0.5]].map(([ns, side]) => ns + side * (slice.lane.ends[slice.index] - slice.lane.starts[slice.index])));
  });
}

/** Handles the keys of `KEYS`; zooming and panning continue while a key is held. */
function attachKeys(line, input, help) {
  const held = new Set();
  const moves = { w: (part) => line.zoom(1 / (1 + part)), s: (part) => line.zoom(1 + part), a: (part) => line.pan(-part), d: (part) => line.pan(part) };
  let last = 0;
  const glide = (now) => {
    if (!held.size) return;
    const passed = Math.min(0.05, (now - last) / 1000);
    last = now;
    for (const key of held) moves[key](1.6 * passed);
    requestAnimationFrame(glide);
  };
  const inSight = () => {
    const box = line.canvas.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea, select") || help.open;
    if (event.key === "Escape" && !help.open) letGo(line, input);
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === "/") {
      event.preventDefault();
      line.stage.closest("section").scrollIntoView({ block: "nearest" });
      input.focus();
    } else if (key === "?") help.showModal();
    else if (key === "f" && inSight()) line.fit();
    else if (key in moves && inSight()) {
      if (held.has(key)) return;
      // A tap moves a tenth at once; holding glides on.
      moves[key](0.1);
      held.add(key);
      last = performance.now();
      if (held.size === 1) requestAnimationFrame(glide);
    } else if ((key === "arrowup" || key === "arrowdown") && document.activeElement === line.canvas) {
      event.preventDefault();
      stepRank(line, key === "arrowdown" ? 1 : -1);
    }
  });
  addEventListener("keyup", (event) => held.delete(event.key.toLowerCase()));
  addEventListener("blur", () => held.clear());
}

/** Clears the search, the selection and the filters. */
function letGo(line, input) {
  if (document.activeElement === input) line.canvas.focus();
  choose(line, null);
  setState({ q: "", kind: "", rank: null, account: "" });
}

/** Selects the rank below (`way` 1) or above (-1) the selected one. */
function stepRank(line, way) {
  const ranks = [...new Set(line.lanes.map((lane) => lane.rank))];
  const next = ranks[Math.max(0, Math.min(ranks.length - 1, ranks.indexOf(state.rank) + way))];
  setState({ rank: next });
  say(`rank ${next}`);
}

/** The dialog that lists the keys. */
function helpDialog() {
  const keys = KEYS.map(([key, does]) => el("tr", {}, el("th", { scope: "row" }, ...key.split("  ").flatMap((one) => [el("kbd", {}, one), " "])), el("td", {}, does)));
  const help = el("dialog", { "aria-labelledby": "help-title" }, el("h2", { id: "help-title" }, "Timeline keys"), el("table", {}, el("tbody", {}, ...keys)),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  document.body.append(help);
  help.addEventListener("click", (event) => event.target === help && help.close());
  return help;
}
