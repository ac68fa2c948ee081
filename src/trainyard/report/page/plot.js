// What the charts of plans share: scales, round ticks, sizes, keys, and labels that do not cover each other.

import { darkWanted, tuned } from "./colours.js";
import { css } from "./contrast.js";
import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { brief, decimal, fixed, plural, share, tickStep, time, whole } from "./numbers.js";
import { watch } from "./state.js";
import { SMALL, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

/** A logarithmic scale: a function from values in [low, high] to px in [from, to]. */
export const logarithmic = (low, high, from, to) => (value) => from + (Math.log(value / low) / (Math.log(high / low) || 1)) * (to - from);
/** A linear scale: a function from values in [low, high] to px in [from, to]. */
export const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

/** Round values from `low` to `high`, at least `room` px apart: as few of each ten as give four. */
export function roundTicks(low, high, place, room) {
  const from = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.min(60, Math.floor(Math.log10(high)) - from + 1) }, (_, at) => 10 ** (from + at));
  const of = (steps) => powers.flatMap((power) => steps.map((step) => step * power)).filter((value) => value >= low && value <= high);
  const step = tickStep(high - low, 4);
  const even = () => Array.from({ length: 12 }, (_, at) => (Math.ceil(low / step) + at) * step).filter((value) => value <= high);
  const sets = [[1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]].map(of);
  const inside = sets.find((found) => found.length > 3) ?? sets.find((found) => found.length > 2) ?? even();
  return inside.reduce((kept, value) => (kept.length && Math.abs(place(value) - place(kept.at(-1))) < room ? kept : [...kept, value]), []);
}

/** A device's capacity in bytes, if it can be drawn next to the bytes in use. */
export function limitBeside(held) {
  const { limit } = view.planned;
  return limit <= 12 * Math.max(...held) ? limit : 0;
}

/** What each sign of a chart means: [label, how its sign is dressed (element) => void]. */
export function chartKeys(title, entries) {
  const list = el("ul", { class: "chart-keys", "aria-label": title });
  for (const [label, dress] of entries) {
    const sign = el("i", { "aria-hidden": "true" });
    const show = () => dress(sign);
    watch((changed) => changed.includes("theme") && show());
    darkWanted.addEventListener("change", show);
    show();
    list.append(el("li", {}, sign, label));
  }
  return list;
}

export const coloured = (colour) => (sign) => (sign.style.background = css(tuned(colour)));
export const dressed = (name) => (sign) => (sign.className = name);

export const BESIDE = [[9, -4, "start"], [9, 13, "start"], [-9, 13, "end"], [-9, -4, "end"], [9, 4, "start"], [-9, 4, "end"]];
export const ABOVE = [[8, -5, "start"], [0, -10, "middle"], [0, 19, "middle"]];

/** Places text next to a point, unless it would cover another point, text or one of `boxes`, or leave the chart. */
export function labeller([left, right, top, bottom], points, around = BESIDE, boxes = []) {
  const taken = [...points.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]), ...boxes];
  return (text, x, y, name = "point-label") => {
    const wide = textWidth(text, SMALL);
    for (const [dx, dy, anchor] of around) {
      const from = x + dx - { start: 0, middle: wide / 2, end: wide }[anchor];
      const box = [from - 2, y + dy - 10, from + wide + 2, y + dy + 3];
      const inside = box[0] >= left && box[2] <= right && box[1] >= top && box[3] <= bottom;
      if (!inside || taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      taken.push(box);
      return svg("text", { class: name, x: x + dx, y: y + dy, "text-anchor": anchor }, text);
    }
    return null;
  };
}

/** What is known of a layout, for its tooltip and its screen reader. */
export function dotLines(dot) {
  if (dot.reason) return [plural(dot.devices, "device"), dot.reason];
  return [
    `${plural(dot.devices, "device")}: ${dot.label}`,
    `${time(dot.wall_ns)} a step, ${time(dot.low)} to ${time(dot.high)} in four of five`,
    `${brief(dot.tokens_per_s)} tokens/s, MFU ${share(dot.mfu, 1)}`,
    dot.reserved ? `${decimal(dot.reserved)} reserved` : null,
    dot.days ? [`${fixed(dot.days, 1)} days`, dot.dollars !== null && `$${whole(dot.dollars)}`, dot.kwh !== null && `${whole(dot.kwh)} kWh`].filter(Boolean).join(", ") : null,
    dot.efficiency ? `${share(dot.efficiency, 1)} of the smallest number's tokens a second and device` : null,
  ].filter(Boolean);
}

export const DOT_HEADS = ["layout", "devices", "samples", "step_ns", "low_ns", "high_ns", "reserved_bytes", "tokens_per_s", "mfu", "efficiency", "days", "dollars", "kwh", "reason"];
export const dotRow = (dot) => [dot.label, dot.devices, dot.samples, dot.wall_ns, dot.low, dot.high, dot.reserved, dot.tokens_per_s, dot.mfu, dot.efficiency, dot.days, dot.dollars ?? "", dot.kwh ?? "", dot.reason];

/** A point that can be pointed at and focused. */
export function dotMark(dot, x, y, name, radius = 4.5) {
  const group = svg("g", { class: `spot ${name}`, tabindex: 0, role: "listitem", "aria-label": dotLines(dot).join("; ") },
    svg("circle", { class: "hit", cx: x, cy: y, r: 11 }), svg("circle", { class: "mark", cx: x, cy: y, r: radius }));
  return explain(group, () => dotLines(dot));
}
