// The search of timelines by name.

import { el } from "./dom.js";
import { totals } from "./lanes.js";
import { plural, time } from "./numbers.js";
import { setState, state, watch } from "./state.js";

/** The lanes of device work if any slice of it matches, else those of the host, else the ledger: their times may not be added. */
export function searchedLanes(line) {
  const { fits } = line;
  const kinds = ["device", "host", "ledger"].map((kind) => line.lanes.filter((lane) => lane.kind === kind));
  return kinds.find((lanes) => lanes.some((lane) => lane.kinds.some((kind) => fits[kind]))) ?? [];
}

/** The number and total time of the slices of a timeline that match the search text and the selected label: `3 matches`, separator, `1.2 ms`. */
export function countMatches(line, separator) {
  const { counts, lengths } = totals(searchedLanes(line), line.names.length, -Infinity, Infinity);
  let [count, ns] = [0, 0];
  line.fits.forEach((fits, kind) => {
    if (!fits) return;
    count += counts[kind];
    ns += lengths[kind];
  });
  return count ? `${plural(count, "match")}${separator}${time(ns)}` : "no match";
}

/** The search field. `describe()`: the matches as text; `next(way)`: called for Enter (1) and Shift+Enter (-1). */
export function searchField(called, describe, next = (way) => {}) {
  const input = el("input", { type: "search", placeholder: "Search names", "aria-label": called, spellcheck: "false", autocomplete: "off" });
  const result = el("output", {});
  const show = () => {
    if (input.value !== state.q) input.value = state.q;
    result.textContent = state.q ? describe() : "";
  };
  input.addEventListener("input", () => setState({ q: input.value }));
  input.addEventListener("keydown", (event) => event.key === "Enter" && next(event.shiftKey ? -1 : 1));
  watch((changed) => ["q", "kind", "rank"].some((name) => changed.includes(name)) && show());
  return { field: el("label", { class: "search" }, result, input), input, show };
}
