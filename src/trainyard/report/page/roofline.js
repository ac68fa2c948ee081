// The roofline: ops by arithmetic intensity and rate, below the limits of the device's memory and arithmetic.

import { axesOf, powerTicks, withUnit } from "./axes.js";
import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { brief, fixed, plural, share, time, whole } from "./numbers.js";
import { BESIDE, chartKeys, coloured, dressed, labeller, logarithmic } from "./plot.js";
import { fitted, SMALL, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

const [ROOFLINE_HEIGHT, MOST_LABELS, WIDEST_DOT] = [440, 8, 17];

/** Draws the section "Roofline". */
export function roofline(data) {
  if (!data) return;
  const note = `${data.device || "device unknown"}: ${plural(data.points.length, "op")} with known FLOPs and bytes, ${share(data.covered_ns, data.compute_ns)} of compute time; area by time${data.bandwidth ? "" : "; no machine file describes the device, so its limits are not drawn"}`;
  const card = section("roofline", "Roofline", note, {
    nav: "Roofline",
    csv: () => saveCsv("roofline", rooflineRows(data)),
    png: () => saveSvg("roofline", host.firstChild),
    svg: () => saveDrawing("roofline", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const accounts = new Map(data.points.map(({ label, colour }) => [label, colour]));
  card.append(chartKeys("Accounts", [...[...accounts].map(([name, colour]) => [name, coloured(colour)]), ...(data.bandwidth ? [["Limit of the device", dressed("key-roof")]] : [])]), host, details("The ops as a table", () => rooflineRows(data)));
  redrawn(host, () => host.replaceChildren(drawRoofline(host.clientWidth, data)));
}

/** A row for each op after the headings. */
function rooflineRows(data) {
  const rows = data.points.map((row) => [row.op, row.shape, row.account, row.phase, row.dtype, fixed(row.count, 1), row.ns, String(row.intensity), row.flops_rate, row.bound, row.reachable_ns ?? ""]);
  return [["op", "shapes", "account", "phase", "format", "calls", "ns", "flops_per_byte", "flops_per_s", "bound", "reachable_ns"], ...rows];
}

/** The chart as an SVG element; both axes are logarithmic. */
function drawRoofline(width, data) {
  /** @type {[number, number, number, number]} */
  const box = [64, width - 18, 26, ROOFLINE_HEIGHT - 44];
  const [left, right, top, bottom] = box;
  const peak = Math.max(...data.roofs.map(({ flops_rate }) => flops_rate), 0);
  const ridge = data.bandwidth && peak ? peak / data.bandwidth : 0;
  const intensities = [...data.points.map(({ intensity }) => intensity), ...(ridge ? [ridge] : [])];
  const rates = [...data.points.map(({ flops_rate }) => flops_rate), ...(peak ? [peak] : [])];
  const [lowX, highX] = [Math.min(...intensities) / 2, Math.max(...intensities) * 3];
  const [lowY, highY] = [Math.min(...rates) / 2, Math.max(...rates) * 2.2];
  const [x, y] = [logarithmic(lowX, highX, left, right), logarithmic(lowY, highY, bottom, top)];
  const chart = svg("svg", { width, height: ROOFLINE_HEIGHT, role: "list", "aria-label": "Roofline: FLOP/s by FLOPs per byte" });
  chart.append(axesOf({ x, y, xs: powerTicks(lowX, highX), ys: powerTicks(lowY, highY), labelX: brief, labelY: brief, nameX: "FLOPs per byte", nameY: "FLOP/s", box }));
  if (data.bandwidth) chart.append(...roofLines(data, { x, y, lowX, highX, lowY, left, right }));
  const most = Math.max(...data.points.map(({ ns }) => ns));
  const radius = (ns) => Math.max(3, WIDEST_DOT * Math.sqrt(ns / most));
  // Large marks first, so that small ones stay visible.
  for (const point of data.points) chart.append(opMark(point, x(point.intensity), y(point.flops_rate), radius(point.ns), data));
  const limits = data.bandwidth ? data.roofs.map((roof) => [right - textWidth(limitText(roof), SMALL), y(roof.flops_rate) - 17, right, y(roof.flops_rate) + 2]) : [];
  const place = labeller([left, right, top - 10, bottom], data.points.slice(0, MOST_LABELS).map((point) => [x(point.intensity), y(point.flops_rate)]), BESIDE, limits);
  const named = new Set();
  for (const point of data.points.slice(0, MOST_LABELS)) {
    const name = fitted(point.op.replace(/^aten::/, ""), 190, SMALL);
    if (named.has(name)) continue;
    const label = place(name, x(point.intensity), y(point.flops_rate));
    if (!label) continue;
    named.add(name);
    chart.append(label);
  }
  return chart;
}

/** The name of a limit of arithmetic. */
const limitText = ({ dtype, flops_rate }) => `${dtype} ${withUnit(flops_rate, "FLOP/s")}`;

/** The limit of the memory, and of each format's arithmetic from the intensity at which it takes over. */
function roofLines(data, { x, y, lowX, highX, lowY, left, right }) {
  const highest = Math.max(...data.roofs.map(({ flops_rate }) => flops_rate), 0);
  const until = highest ? Math.min(highX, highest / data.bandwidth) : highX;
  const from = Math.max(lowX, lowY / data.bandwidth);
  const lines = [svg("path", { class: "roof", d: `M${x(from)} ${y(from * data.bandwidth)}L${x(until)} ${y(until * data.bandwidth)}` })];
  const middle = Math.sqrt(from * until);
  const slope = (Math.atan2(y(until * data.bandwidth) - y(from * data.bandwidth), x(until) - x(from)) * 180) / Math.PI;
  lines.push(svg("text", { class: "point-label", x: x(middle), y: y(middle * data.bandwidth) - 7, "text-anchor": "middle", transform: `rotate(${slope.toFixed(1)} ${x(middle)} ${y(middle * data.bandwidth)})` }, `memory ${withUnit(data.bandwidth, "B/s")}`));
  for (const roof of data.roofs) {
    const { flops_rate } = roof;
    const start = Math.max(lowX, flops_rate / data.bandwidth);
    lines.push(svg("path", { class: "roof", d: `M${Math.max(left, x(start))} ${y(flops_rate)}H${right}` }));
    lines.push(svg("text", { class: "point-label", x: right, y: y(flops_rate) - 6, "text-anchor": "end" }, limitText(roof)));
  }
  return lines;
}

/** An op as a mark that can be pointed at and focused. */
function opMark(point, x, y, radius, data) {
  const limit = data.bandwidth ? Math.min(point.intensity * data.bandwidth, data.roofs.find(({ dtype }) => dtype === point.dtype)?.flops_rate ?? Infinity) : 0;
  const lines = () => [
    point.op,
    point.shape,
    `${time(point.ns)} a step, ${fixed(point.count, 1)} calls, ${point.phase}`,
    `${withUnit(point.flops_rate, "FLOP/s")} at ${brief(point.intensity)} FLOPs per byte${point.dtype ? `, ${point.dtype}` : ""}`,
    Number.isFinite(limit) && limit ? `${share(point.flops_rate, limit)} of the limit at this intensity, ${point.bound === "unknown" ? "bound unknown" : `${point.bound}-bound`}` : null,
    point.reachable_ns === null ? null : `at the roofline: ${time(point.reachable_ns)}`,
  ];
  const mark = svg("g", { class: "spot op", tabindex: 0, role: "listitem", "aria-label": `${point.op}: ${whole(point.ns)} ns, ${withUnit(point.flops_rate, "FLOP/s")}` },
    svg("circle", { class: "hit", cx: x, cy: y, r: Math.max(8, radius) }), svg("circle", { class: "op-mark", cx: x, cy: y, r: radius, fill: css(tuned(point.colour)) }));
  return explain(mark, lines);
}
