// Memory over time: allocated bytes stacked by category, pending and cached bytes above them, and the peak.

import { ink, tuned } from "./colours.js";
import { css, mix, rgb } from "./contrast.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { legendKeys } from "./legend.js";
import { size, tickStep, time, whole } from "./numbers.js";
import { fitted, SMALL } from "./text.js";
import { state, watch } from "./state.js";
import { hideTip, showTip } from "./tooltip.js";

/**
 * Bytes over time: `kinds[k]` describes `curve.kinds[k]`, whose values hold until the next moment; `curve.active` and `curve.reserved` are empty if
 * unknown. `marks`: [ns, text] of annotations; `shortages`: failed requests; `steps`: [label, ns of its start]; `length`: ns that are drawn.
 * `choice`: the name of the part of the state that holds the selected category.
 * @typedef {{curve: any, kinds: any[], title: string, choice: string, marks?: [number, string][], shortages?: any[], steps?: [string, number][], length?: number}} Course
 */

const STAGE = 330;

export const momentText = (curve, at) => (curve.timed ? time(at) : `event ${whole(at)}`);
const allocatedAt = (curve, at) => curve.kinds.reduce((sum, column) => sum + column[at], 0);

/**
 * Draws the section "Memory over time": a stacked chart with its legend and table. Returns its card.
 * @param {Course} course
 */
export function area(course, { id, note, nav }) {
  const { curve, kinds, choice } = course;
  const thinned = curve.moments > curve.ns.length ? `; ${whole(curve.ns.length)} of ${whole(curve.moments)} moments are drawn, with every peak` : "";
  const card = section(id, "Memory over time", `${note}${thinned}`, {
    nav, csv: () => saveCsv("memory", areaRows(course)), png: () => saveSvg("memory", host.firstChild), svg: () => saveDrawing("memory", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  card.append(legendKeys(kinds, { label: "Categories; select one to dim the others, in every chart", compact: false, choice }), host, details("The curve as a table", () => areaRows(course)));
  const draw = () => host.replaceChildren(drawArea(host.clientWidth, course));
  redrawn(host, draw);
  watch((changed) => changed.includes(course.choice) && draw());
  return card;
}

/** The curve as rows for the table and the CSV: a row of headings, then one row per moment, in bytes. */
function areaRows({ curve, kinds }) {
  const further = ["active", "reserved"].filter((name) => curve[name].length);
  const heads = [curve.timed ? "ns" : "events", ...kinds.map(({ label }) => label), "allocated", ...further];
  return [heads, ...curve.ns.map((ns, at) => [ns, ...curve.kinds.map((column) => column[at]), allocatedAt(curve, at), ...further.map((name) => curve[name][at])])];
}

/** The colour of a category, dimmed if another one is selected. `choice`: the part of the state that holds the selected one. */
export const fillOf = (label, colour, choice = "kind") => (state[choice] && state[choice] !== label ? css(mix(tuned(colour), rgb(ink("--card")), 0.8)) : css(tuned(colour)));

/** The chart as an SVG element of `width` px: bytes of each category stacked, lines of active and reserved bytes, marks. */
function drawArea(width, course) {
  const { curve, kinds } = course;
  const last = Math.max(1, course.length ?? curve.ns.at(-1));
  const allocated = curve.ns.map((_, at) => allocatedAt(curve, at));
  const most = Math.max(1, ...curve.reserved, ...curve.active, ...allocated);
  const [left, right, top, bottom] = [64, width - 12, 26, STAGE - 26];
  const x = (ns) => left + (ns / last) * (right - left);
  const y = (bytes) => bottom - (bytes / most) * (bottom - top);
  const chart = svg("svg", { width, height: STAGE, role: "img", "aria-label": `Memory over time; ${course.title}` });
  chart.append(areaAxes({ curve, width, left, right, bottom, x, y, most, last }));
  const times = [...curve.ns, last];
  const held = (column) => [...column, column.at(-1)];
  let below = times.map(() => 0);
  curve.kinds.forEach((column, kind) => {
    const own = held(column);
    const above = below.map((bytes, at) => bytes + own[at]);
    const { label, colour } = kinds[kind];
    chart.append(svg("path", { class: "body", d: areaBand(times, below, above, x, y), fill: fillOf(label, colour, course.choice) }));
    below = above;
  });
  for (const name of ["active", "reserved"]) if (curve[name].length) chart.append(svg("path", { class: name, d: stepLine(times, held(curve[name]), x, y) }));
  if (course.steps) chart.append(stepBounds(course.steps, { x, last, top, bottom }));
  chart.append(areaMarks(course, { x, y, top, bottom, left, right }));
  chart.append(areaPointer(course, { chart, x, left, right, top, bottom, last }));
  return chart;
}

/** A line of steps: each value holds until the next moment. */
function stepLine(times, values, x, y) {
  return values.map((value, at) => `${at ? "H" : "M"}${x(times[at]).toFixed(1)}${at ? "V" : " "}${y(value).toFixed(1)}`).join("");
}

/** The path of the area between two step lines, `low` and `high`: bytes at each time. */
function areaBand(times, low, high, x, y) {
  let path = stepLine(times, high, x, y);
  for (let at = times.length - 1; at >= 0; at -= 1) path += `V${y(low[at]).toFixed(1)}H${x(times[at]).toFixed(1)}`;
  return `${path}Z`;
}

/** Lines at the starts of steps, and their names as long as there is room. */
function stepBounds(bounds, { x, last, top, bottom }) {
  const group = svg("g", { "aria-hidden": "true" });
  bounds.forEach(([label, start], at) => {
    const from = x(start);
    if (at) group.append(svg("path", { class: "reset", d: `M${from} ${top}V${bottom}` }));
    const name = fitted(label, x(bounds[at + 1]?.[1] ?? last) - from - 8, SMALL);
    if (name.length > 4 || name === label) group.append(svg("text", { class: "point-label", x: from + 4, y: top + 14 }, name));
  });
  return group;
}

/** Grid lines and labels. `x`, `y`: map ns and bytes to px; `most`: bytes at the top; `last`: ns at the right. */
function areaAxes({ curve, width, left, right, bottom, x, y, most, last }) {
  const group = svg("g", { "aria-hidden": "true" });
  const unit = [2 ** 40, 2 ** 30, 2 ** 20, 2 ** 10].find((bytes) => most >= bytes) ?? 1;
  const step = tickStep(most / unit, 5) * unit;
  for (let bytes = 0; bytes <= most; bytes += step) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(bytes), y2: y(bytes) }));
    group.append(svg("text", { class: "tick", x: left - 8, y: y(bytes) + 4, "text-anchor": "end" }, bytes ? size(bytes, step < unit ? 1 : 0) : "0"));
  }
  const along = Math.max(1, tickStep(last, Math.max(2, (right - left) / 110)));
  for (let ns = 0; ns <= last; ns += along) {
    group.append(svg("text", { class: "tick", x: x(ns), y: bottom + 18, "text-anchor": "middle" }, curve.timed ? (ns ? time(ns, 2) : "0") : whole(ns)));
  }
  if (!curve.timed) group.append(svg("text", { class: "tick", x: width - 12, y: bottom + 18, "text-anchor": "end" }, "events"));
  return group;
}

/** The peak, failed allocations, and the program's annotations. */
function areaMarks({ curve, marks = [], shortages = [] }, { x, y, top, bottom, left, right }) {
  const group = svg("g");
  for (const [ns, text] of marks) {
    group.append(svg("path", { class: "annotation", d: `M${x(ns)} ${bottom}v6` }, svg("title", {}, `${momentText(curve, ns)}: ${text}`)));
  }
  for (const { ns, requested } of shortages) {
    const at = x(ns);
    group.append(svg("path", { class: "shortage", d: `M${at} ${top}V${bottom}` }));
    group.append(svg("text", { class: "shortage-label", x: at + (at > (left + right) / 2 ? -6 : 6), y: bottom - 6, "text-anchor": at > (left + right) / 2 ? "end" : "start" }, `out of memory: ${size(requested)}`));
  }
  const at = x(curve.ns[curve.peak]);
  const high = y(allocatedAt(curve, curve.peak));
  group.append(svg("path", { class: "peak", d: `M${at} ${top - 8}V${bottom}` }), svg("circle", { class: "peak-dot", cx: at, cy: high, r: 4 }));
  const side = at > (left + right) / 2 ? "end" : "start";
  const cached = curve.reserved.length ? ` of ${size(curve.reserved[curve.peak])} reserved` : "";
  const text = `peak ${size(allocatedAt(curve, curve.peak))}${cached} at ${momentText(curve, curve.ns[curve.peak])}`;
  group.append(svg("text", { class: "value", x: at + (side === "end" ? -7 : 7), y: top - 8, "text-anchor": side }, text));
  return group;
}

/** A layer over the chart that shows, in a tooltip, the bytes held at the moment under the pointer. */
function areaPointer({ curve, kinds }, { chart, x, left, right, top, bottom, last }) {
  const line = svg("path", { class: "cursor" });
  const plane = svg("rect", { class: "plane", x: left, y: top, width: Math.max(1, right - left), height: bottom - top });
  plane.addEventListener("pointermove", (event) => {
    const ns = ((event.clientX - chart.getBoundingClientRect().left - left) / (right - left)) * last;
    let [low, high] = [0, curve.ns.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (curve.ns[middle] <= ns) low = middle;
      else high = middle - 1;
    }
    line.setAttribute("d", `M${x(curve.ns[low])} ${top}V${bottom}`);
    const held = kinds.map(({ label }, kind) => [label, curve.kinds[kind][low]]).filter(([, bytes]) => bytes).reverse();
    const cached = curve.reserved.length ? [`reserved ${size(curve.reserved[low])}`] : [];
    showTip([momentText(curve, curve.ns[low]), ...cached, `allocated ${size(allocatedAt(curve, low))}`, ...held.map(([label, bytes]) => `${label}: ${size(bytes)}`)], event.clientX, event.clientY);
  });
  plane.addEventListener("pointerleave", () => {
    line.removeAttribute("d");
    hideTip();
  });
  return svg("g", {}, line, plane);
}
