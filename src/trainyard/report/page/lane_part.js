// A part of a lane of the timeline.

import { firstAfter } from "./lanes.js";

/** The slices of a lane between `start` and `stop` ns, in ns from `start`, with all their columns. */
export function cutLane(lane, start, stop) {
  const first = firstAfter(lane, start);
  let last = first;
  while (last < lane.starts.length && lane.starts[last] < stop) last += 1;
  const cut = (value) => {
    if (!value || typeof value !== "object") return value;
    if ("length" in value) return value.length === lane.starts.length ? value.slice(first, last) : value;
    return Object.fromEntries(Object.entries(value).map(([name, column]) => [name, cut(column)]));
  };
  const shown = cut(lane);
  return { ...shown, starts: shown.starts.map((ns) => Math.max(0, ns - start)), ends: shown.ends.map((ns) => Math.min(stop, ns) - start) };
}
