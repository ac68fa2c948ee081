// Hands on the timeline: keys, wheel, drag, search, legend, help.

import { SLICE_CONTRAST } from "./colours.js";
import { el } from "./dom.js";
import { firstAfter } from "./lanes.js";
import { KINDS_LABEL, legendKeys } from "./legend.js";
import { pathButton } from "./path_marks.js";
import { toggleAt, toggleSelected } from "./rank_groups.js";
import { countMatches, searchedLanes, searchField } from "./search.js";
import { launcher, showSelection } from "./selection.js";
import { setState, state } from "./state.js";
import { hideTip, say, showTip } from "./tooltip.js";

const KEYS = [
  ["W  S", "zoom in, out"], ["A  D", "pan left, right"], ["F", "fit the whole timeline"],
  ["←  →", "select the slice before, after (timeline focused)"], ["↑  ↓", "select in the lane above, below; with Shift, select the rank"], ["Enter", "zoom to the selected slice; without one, open or close the group of the selected rank"],
  ["L", "select the host call that launched the selected slice"], ["R", "select the time of the selected slice, or all of the view, as a range"], ["[  ]", "show the step before, after, as a range"],
  ["H", "show or hide the host lanes"], ["C", "show or hide the critical path"],
  ["/", "search by name; Enter for the next match, Shift+Enter for the one before"], ["Esc", "close: search, selection, range, this help"], ["?", "this help"],
  ["wheel", "zoom at the pointer; with Shift, scroll the lanes"], ["drag", "select a range; with Shift, pan"], ["click", "select a slice and its rank; double-click to zoom to it"],
];

/** Adds the legend and the search box to `bar`, and connects pointer and keys to the timeline `line` (a `Line`). */
export function attachControls(line, bar) {
  const { field, input, show } = searchField("Search the timeline by name", () => countMatches(line, " · "), (way) => nextMatch(line, way));
  const toggle = pathButton(line);
  const used = new Set(line.packed.looks);
  const legend = legendKeys(line.packed.legend.filter((_, look) => used.has(look)), { label: KINDS_LABEL, least: SLICE_CONTRAST });
  bar.append(legend, ...(toggle ? [toggle] : []), field);
  attachPointer(line);
  attachKeys([line], input, helpDialog(toggle !== null));
  show();
}

/** Chooses the match after (or before) the chosen slice in time, and brings it into view. */
function nextMatch(line, way) {
  const key = ({ lane, index }) => [lane.starts[index], line.lanes.indexOf(lane)];
  const order = (a, b) => a[0] - b[0] || a[1] - b[1];
  const now = line.chosen ? key(line.chosen) : [way > 0 ? -Infinity : Infinity, 0];
  let best = null;
  const { fits } = line;
  for (const lane of searchedLanes(line)) {
    const number = line.lanes.indexOf(lane);
    for (let index = 0; index < lane.starts.length; index += 1) {
      if (!fits[lane.kinds[index]]) continue;
      const here = [lane.starts[index], number];
      if (order(here, now) * way > 0 && (!best || order(here, best.key) * way < 0)) best = { lane, index, key: here };
    }
  }
  if (best) choose(line, best, { follow: true });
}

/**
 * Selects a slice ({lane, index}, or null for none) and describes it below the timeline. `follow`: brings it into view, and zooms to it if it is too
 * short to be seen; `pan`: brings it into view without zooming.
 */
export function choose(line, slice, { follow = false, pan = false } = {}) {
  line.chosen = slice;
  showSelection(line, line.picked, slice, (other) => choose(line, other, { follow: true }));
  if (!slice) return line.ask();
  say(line.about(slice).join(", "));
  const { lane, index } = slice;
  const span = line.to - line.from;
  const hidden = lane.starts[index] < line.from || lane.ends[index] > line.to;
  setState({ rank: lane.rank });
  const middle = (lane.starts[index] + lane.ends[index]) / 2;
  if (pan && hidden) line.show(middle - span / 2, middle + span / 2);
  else if (follow && (hidden || (lane.ends[index] - lane.starts[index]) * line.inner < span * 4)) {
    const wide = Math.min(span, Math.max((lane.ends[index] - lane.starts[index]) * 20, 1000));
    line.show(middle - wide / 2, middle + wide / 2);
  }
  return line.ask();
}

/** Selects the time between two moments in ns, in either order, as the range, within the timeline. */
function selectRange(line, one, other) {
  const [left, right] = [Math.min(one, other), Math.max(one, other)].map((ns) => Math.round(Math.max(0, Math.min(line.length, ns))));
  if (right > left) setState({ left, right });
}

/** Zooms by the wheel, selects a range by dragging, pans by dragging with Shift, selects by a click, zooms to a slice by a double click, and shows tooltips. */
export function attachPointer(line) {
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
    hideTip();
    const [x, y] = point(event);
    if (event.button === 0) drag = { x, y, from: line.from, to: line.to, scroll: line.scroll, moved: false, pans: event.shiftKey };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = point(event);
    if (drag) {
      if (!drag.moved && Math.hypot(x - drag.x, y - drag.y) > 3) {
        drag.moved = true;
        canvas.setPointerCapture(event.pointerId);
      }
      if (!drag.moved) return;
      if (!drag.pans) {
        selectRange(line, line.ns(drag.x), line.ns(x));
        return;
      }
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
    if (drag && !drag.moved && !toggleAt(line, ...point(event))) choose(line, line.at(...point(event)));
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
    if (slice) zoomTo(line, slice);
  });
}

/** Handles the keys of `KEYS` for timelines that are zoomed together, selections in the one that has the focus, else in the first; zooming and panning continue while a key is held. */
export function attachKeys(lines, input, help) {
  const current = () => lines.find(({ canvas }) => canvas === document.activeElement) ?? lines[0];
  const held = new Set();
  const moves = { w: (part) => current().zoom(1 / (1 + part)), s: (part) => current().zoom(1 + part), a: (part) => current().pan(-part), d: (part) => current().pan(part) };
  const arrows = {
    arrowleft: () => selectBeside(current(), -1), arrowright: () => selectBeside(current(), 1),
    arrowup: (shift) => (shift ? stepRank(current(), -1) : selectAbove(current(), -1)), arrowdown: (shift) => (shift ? stepRank(current(), 1) : selectAbove(current(), 1)),
    enter: () => (current().chosen ? zoomTo(current(), current().chosen) : toggleSelected()),
  };
  const actions = {
    h: () => setState({ host: !state.host }), c: () => current().path && setState({ path: !state.path }), l: () => selectLauncher(current()), r: () => selectRange(current(), ...rangeOf(current())),
    "[": () => stepAway(current(), -1), "]": () => stepAway(current(), 1),
  };
  let last = 0;
  const glide = (now) => {
    if (!held.size) return;
    const passed = Math.min(0.05, (now - last) / 1000);
    last = now;
    for (const key of held) moves[key](1.6 * passed);
    requestAnimationFrame(glide);
  };
  const inSight = () => lines.some(({ canvas }) => {
    const box = canvas.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  });
  addEventListener("keydown", (event) => {
    const typing = (event.target instanceof Element && event.target.matches("input, textarea, select")) || help.open;
    if (event.key === "Escape" && !help.open) letGo(lines, input);
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === "/") {
      event.preventDefault();
      lines[0].stage.closest("section").scrollIntoView({ block: "nearest" });
      input.focus();
    } else if (key === "?") help.showModal();
    else if (key === "f" && inSight()) current().fit();
    else if (key in moves && inSight()) {
      if (held.has(key)) return;
      // A tap moves a tenth at once; holding glides on.
      moves[key](0.1);
      held.add(key);
      last = performance.now();
      if (held.size === 1) requestAnimationFrame(glide);
    } else if (key in arrows && document.activeElement === current().canvas) {
      event.preventDefault();
      arrows[key](event.shiftKey);
    } else if (key in actions && inSight()) actions[key]();
  });
  addEventListener("keyup", (event) => held.delete(event.key.toLowerCase()));
  addEventListener("blur", () => held.clear());
}

/** Clears the search, the selection and the filters. */
function letGo(lines, input) {
  if (document.activeElement === input) lines[0].canvas.focus();
  for (const line of lines) choose(line, null);
  setState({ q: "", kind: "", rank: null, account: "", left: null, right: null });
}

/** Shows a slice and as much again on either side. */
function zoomTo(line, { lane, index }) {
  const [start, end] = [lane.starts[index], lane.ends[index]];
  line.show(start - 0.5 * (end - start), end + 0.5 * (end - start));
}

/** The slice of a lane that is nearest to a time in ns. */
function sliceAt(lane, ns) {
  const after = Math.min(firstAfter(lane, ns), lane.starts.length - 1);
  const isBeforeNearer = after > 0 && ns - lane.ends[after - 1] < lane.starts[after] - ns;
  return { lane, index: isBeforeNearer ? after - 1 : after };
}

/** Selects the slice before (`way` -1) or after (1) the selected one in its lane; the first in view if none is selected. */
function selectBeside(line, way) {
  const lane = line.chosen?.lane ?? line.rows.find((row) => state.rank === null || row.lane.rank === state.rank).lane;
  const index = line.chosen ? Math.max(0, Math.min(lane.starts.length - 1, line.chosen.index + way)) : sliceAt(lane, line.from).index;
  choose(line, { lane, index }, { pan: true });
}

/** Selects the slice at the same time in the lane above (`way` -1) or below (1); without a selected slice, the rank. */
function selectAbove(line, way) {
  if (!line.chosen) return stepRank(line, way);
  const lanes = line.rows.map((row) => row.lane).filter((lane) => lane.starts.length);
  const next = lanes[lanes.indexOf(line.chosen.lane) + way];
  const { lane, index } = line.chosen;
  return next && choose(line, sliceAt(next, (lane.starts[index] + lane.ends[index]) / 2), { pan: true });
}

/** Selects the call that launched the selected slice. */
function selectLauncher(line) {
  const call = line.chosen && launcher(line, line.chosen);
  if (call) choose(line, call, { follow: true });
}

/** The times of the selected slice, else of the view, in ns. */
function rangeOf(line) {
  const { lane, index } = line.chosen ?? {};
  return lane ? [lane.starts[index], lane.ends[index]] : [line.from, line.to];
}

/** Shows the step of the selected rank after (`way` 1) or before (-1) the middle of the view, and selects it as the range. */
function stepAway(line, way) {
  const { steps } = line;
  const isShown = ([, start, stop]) => state.left === Math.max(0, start) && state.right === stop;
  const middle = (line.from + line.to) / 2;
  const now = steps.findIndex(isShown) >= 0 ? steps.findIndex(isShown) + way : Math.max(0, steps.findIndex(([, start, stop]) => start <= middle && middle < stop));
  const step = steps[Math.max(0, Math.min(steps.length - 1, now))];
  if (!step) return;
  const [label, start, stop] = step;
  line.show(start - 0.02 * (stop - start), stop + 0.02 * (stop - start));
  selectRange(line, start, stop);
  say(label);
}

/** Selects the rank below (`way` 1) or above (-1) the selected one. */
function stepRank(line, way) {
  const ranks = [...new Set(line.rows.filter(({ head }) => !head?.open).map(({ lane }) => lane.rank))];
  const next = ranks[Math.max(0, Math.min(ranks.length - 1, ranks.indexOf(state.rank) + way))];
  setState({ rank: next });
  say(`rank ${next}`);
}

/** The dialog that lists the keys. `hasPath`: the page has a critical path. */
export function helpDialog(hasPath = false) {
  const keys = KEYS.filter(([key]) => hasPath || key !== "C").map(([key, does]) => el("tr", {}, el("th", { scope: "row" }, ...key.split("  ").flatMap((one) => [el("kbd", {}, one), " "])), el("td", {}, does)));
  const help = el("dialog", { "aria-labelledby": "help-title" }, el("h2", { id: "help-title" }, "Timeline keys"), el("table", {}, el("tbody", {}, ...keys)),
    el("form", { method: "dialog" }, el("button", {}, "Close")));
  document.body.append(help);
  help.addEventListener("click", (event) => event.target === help && help.close());
  return help;
}
