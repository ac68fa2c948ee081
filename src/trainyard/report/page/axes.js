// Axes of charts: grid lines with labels, on linear and logarithmic scales.

import { svg } from "./dom.js";
import { brief, tickStep } from "./numbers.js";
import { SMALL, textWidth } from "./text.js";

/** A value with its unit: 15.7 TFLOP/s. */
export const withUnit = (value, unit) => `${brief(value).replace(/[TGMk]$/, " $&")}${/[TGMk]$/.test(brief(value)) ? "" : " "}${unit}`;

/** Powers of ten from `low` to `high`; with few of them, also 2 and 5 times each. */
export function powerTicks(low, high) {
  const from = Math.floor(Math.log10(low) - 1e-9);
  const powers = Array.from({ length: Math.min(40, Math.ceil(Math.log10(high)) - from + 1) }, (_, at) => 10 ** (from + at));
  const inside = (values) => values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const tens = inside(powers);
  return tens.length > 2 ? tens : inside(powers.flatMap((power) => [power, 2 * power, 5 * power]));
}

/** Round values from `low` to `high`, about `count`. */
export function evenTicks(low, high, count) {
  const step = tickStep(high - low || 1, count);
  return Array.from({ length: 40 }, (_, at) => (Math.ceil(low / step - 1e-9) + at) * step).filter((value) => value <= high + step * 1e-6);
}

/**
 * Grid lines and labels at the ticks of both axes, and the names of the axes. Labels that would touch are left out.
 * `x`, `y`: scales; `xs`, `ys`: values of ticks; `nameX`, `nameY`: what an axis shows and its unit.
 */
export function axesOf({ x, y, xs, ys, labelX, labelY, nameX, nameY, box: [left, right, top, bottom] }) {
  const group = svg("g", { "aria-hidden": "true" });
  for (const value of ys) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    group.append(svg("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, labelY(value)));
  }
  let last = -99;
  for (const value of xs) {
    const [at, half] = [x(value), textWidth(labelX(value), SMALL) / 2];
    group.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
    if (at - half < last + 8) continue;
    last = at + half;
    group.append(svg("text", { class: "tick", x: at, y: bottom + 17, "text-anchor": "middle" }, labelX(value)));
  }
  group.append(svg("text", { class: "tick", x: Math.min(left - 8, left), y: top - 9, "text-anchor": "start", dx: -(left - 4) + 4 }, nameY));
  group.append(svg("text", { class: "tick", x: right, y: bottom + 34, "text-anchor": "end" }, nameX));
  return group;
}
