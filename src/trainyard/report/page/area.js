// Memory over time: allocated bytes stacked by category, pending and cached bytes above them, and the peak.

import { ink, tuned } from "./colours.js";
import { css, mix, rgb } from "./contrast.js";
import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { legendKeys } from "./legend.js";
import { size, tickStep, time, whole } from "./numbers.js";
import { state, watch } from "./state.js";
import { hideTip, showTip } from "./tooltip.js";

const STAGE = 330;

export const when = (at) => (view.curve.timed ? time(at) : `event ${whole(at)}`);
const allocatedAt = (at) => view.curve.kinds.reduce((sum, column) => sum + column[at], 0);

/** Draws the section "Memory over time": a stacked chart of `view.curve` with its legend and table. */
export function area() {
  const { curve } = view;
  const thinned = curve.moments > curve.ns.length ? `; ${whole(curve.ns.length)} of ${whole(curve.moments)} moments drawn, every peak among them` : "";
  const card = section("time", "Memory over time", `allocated blocks by category, reserved above them${thinned}`, {
    nav: "Over time", csv: () => saveCsv("memory", areaRows()), png: () => saveSvg("memory", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  card.append(legendKeys(view.kinds, { label: "Categories; select one to dim the others, in every chart", compact: false }), host, details("The curve as a table", areaRows));
  const draw = () => host.replaceChildren(drawArea(host.clientWidth));
  redrawn(host, draw);
  watch((changed) => changed.includes("kind") && draw());
}

/** The curve as rows for the table and the CSV: a row of headings, then one row per moment, in bytes. */
function areaRows() {
  const { curve } = view;
  const heads = [curve.timed ? "ns" : "events", ...view.kinds.map(({ label }) => label), "allocated", "active", "reserved"];
  return [heads, ...curve.ns.map((ns, at) => [ns, ...curve.kinds.map((column) => column[at]), allocatedAt(at), curve.active[at], curve.reserved[at]])];
}

/** The colour of a category, dimmed if another one is selected. */
export const fillOf = (label, colour) => (state.kind && state.kind !== label ? css(mix(tuned(colour), rgb(ink("--card")), 0.8)) : css(tuned(colour)));

/** The chart as an SVG element of `width` px: bytes of each category stacked, lines of active and reserved bytes, marks. */
function drawArea(width) {
  const { curve } = view;
  const last = Math.max(1, curve.ns.at(-1));
  const most = Math.max(1, ...curve.reserved, ...curve.active);
  const [left, right, top, bottom] = [64, width - 12, 26, STAGE - 26];
  const x = (ns) => left + (ns / last) * (right - left);
  const y = (bytes) => bottom - (bytes / most) * (bottom - top);
  const chart = svg("svg", { width, height: STAGE, role: "img", "aria-label": `Memory over time; ${view.title}` });
  chart.append(areaAxes({ width, left, right, bottom, x, y, most, last }));
  let below = curve.ns.map(() => 0);
  curve.kinds.forEach((column, kind) => {
    const above = below.map((bytes, at) => bytes + column[at]);
    const { label, colour } = view.kinds[kind];
    chart.append(svg("path", { class: "body", d: band(below, above, x, y), fill: fillOf(label, colour) }));
    below = above;
  });
  chart.append(svg("path", { class: "active", d: steps(curve.active, x, y) }));
  chart.append(svg("path", { class: "reserved", d: steps(curve.reserved, x, y) }));
  chart.append(areaMarks({ x, y, top, bottom, left, right }));
  chart.append(areaPointer({ chart, x, left, right, top, bottom, last }));
  return chart;
}

/** A line of steps: each value holds until the next moment. */
function steps(values, x, y) {
  return values.map((value, at) => `${at ? "H" : "M"}${x(view.curve.ns[at]).toFixed(1)}${at ? "V" : " "}${y(value).toFixed(1)}`).join("");
}

/** The path of the area between two step lines, `low` and `high`: bytes at each moment of the curve. */
function band(low, high, x, y) {
  const { ns } = view.curve;
  let path = steps(high, x, y);
  for (let at = ns.length - 1; at >= 0; at -= 1) path += `V${y(low[at]).toFixed(1)}H${x(ns[at]).toFixed(1)}`;
  return `${path}Z`;
}

/** Grid lines and labels. `x`, `y`: map ns and bytes to px; `most`: bytes at the top; `last`: ns at the right. */
function areaAxes({ width, left, right, bottom, x, y, most, last }) {
  const group = svg("g", { "aria-hidden": "true" });
  const unit = [2 ** 40, 2 ** 30, 2 ** 20, 2 ** 10].find((one) => most >= one) ?? 1;
  const step = tickStep(most / unit, 5) * unit;
  for (let bytes = 0; bytes <= most; bytes += step) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(bytes), y2: y(bytes) }));
    group.append(svg("text", { class: "tick", x: left - 8, y: y(bytes) + 4, "text-anchor": "end" }, bytes ? size(bytes, step < unit ? 1 : 0) : "0"));
  }
  const along = Math.max(1, tickStep(last, Math.max(2, (right - left) / 110)));
  for (let ns = 0; ns <= last; ns += along) {
    group.append(svg("text", { class: "tick", x: x(ns), y: bottom + 18, "text-anchor": "middle" }, view.curve.timed ? (ns ? time(ns, 2) : "0") : whole(ns)));
  }
  if (!view.curve.timed) group.append(svg("text", { class: "tick", x: width - 12, y: bottom + 18, "text-anchor": "end" }, "events"));
  return group;
}

/** The peak, failed allocations, and the program's annotations. */
function areaMarks({ x, y, top, bottom, left, right }) {
  const group = svg("g");
  const { curve } = view;
  for (const [ns, text] of view.marks) {
    group.append(svg("path", { class: "annotation", d: `M${x(ns)} ${bottom}v6` }, svg("title", {}, `${when(ns)}: ${text}`)));
  }
  for (const { ns, requested } of view.shortages) {
    const at = x(ns);
    group.append(svg("path", { class: "shortage", d: `M${at} ${top}V${bottom}` }));
    group.append(svg("text", { class: "shortage-label", x: at + (at > (left + right) / 2 ? -6 : 6), y: bottom - 6, "text-anchor": at > (left + right) / 2 ? "end" : "start" }, `out of memory: ${size(requested)}`));
  }
  const at = x(curve.ns[curve.peak]);
  const high = y(allocatedAt(curve.peak));
  group.append(svg("path", { class: "peak", d: `M${at} ${top - 8}V${bottom}` }), svg("circle", { class: "peak-dot", cx: at, cy: high, r: 4 }));
  const side = at > (left + right) / 2 ? "end" : "start";
  const told = `peak ${size(allocatedAt(curve.peak))} of ${size(curve.reserved[curve.peak])} reserved at ${when(curve.ns[curve.peak])}`;
  group.append(svg("text", { class: "value", x: at + (side === "end" ? -7 : 7), y: top - 8, "text-anchor": side }, told));
  return group;
}

/** A layer over the chart that shows, in a tooltip, the bytes held at the moment under the pointer. */
function areaPointer({ chart, x, left, right, top, bottom, last }) {
  const { curve } = view;
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
    const kinds = view.kinds.map(({ label }, kind) => [label, curve.kinds[kind][low]]).filter(([, bytes]) => bytes).reverse();
    showTip([when(curve.ns[low]), `reserved ${size(curve.reserved[low])}`, `allocated ${size(allocatedAt(low))}`, ...kinds.map(([label, bytes]) => `${label}: ${size(bytes)}`)], event.clientX, event.clientY);
  });
  plane.addEventListener("pointerleave", () => {
    line.removeAttribute("d");
    hideTip();
  });
  return svg("g", {}, line, plane);
}
