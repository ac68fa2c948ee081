// Bus bandwidth of collectives by message size, against the rate of the links between their members.

import { axesOf, powerTicks, withUnit } from "./axes.js";
import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { decimal, plural } from "./numbers.js";
import { chartKeys, coloured, dressed, logarithmic } from "./plot.js";
import { explain } from "./tooltip.js";

const BANDWIDTH_HEIGHT = 360;

/** Draws the section "Bus bandwidth by size". */
export function busBandwidth(data) {
  if (!data) return;
  const bound = data.points.some(({ is_exact }) => !is_exact);
  const card = section("busbandwidth", "Bus bandwidth by size", `as nccl-tests defines it; medians, with the slowest and the fastest call${bound ? "; hollow: timed with waiting, a lower bound" : ""}${data.links.length ? "" : "; the rate of the link is unknown"}`, {
    nav: "Bandwidth",
    csv: () => saveCsv("bus-bandwidth", bandwidthRows(data)),
    png: () => saveSvg("bus-bandwidth", host.firstChild),
    svg: () => saveDrawing("bus-bandwidth", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const kinds = new Map(data.points.map(({ label, colour }) => [label, colour]));
  const keys = [...[...kinds].map(([label, colour]) => [label, coloured(colour)]), ...(data.links.length ? [["Rate of the link", dressed("key-roof")]] : [])];
  card.append(chartKeys("Collectives", keys), host, details("The collectives as a table", () => bandwidthRows(data)));
  redrawn(host, () => host.replaceChildren(drawBandwidth(host.clientWidth, data)));
}

/** A row for each collective, group and size after the headings. */
function bandwidthRows(data) {
  const rows = data.points.map((row) => [row.label, row.group, row.members, row.size, row.count, row.busbw, row.slowest, row.fastest, row.is_exact ? "last arrival" : "shortest member", row.verdict]);
  return [["collective", "group", "members", "bytes", "calls", "busbw_bytes_per_s", "slowest", "fastest", "timed_by", "verdict"], ...rows];
}

/** The chart as an SVG element; both axes are logarithmic. A line joins the sizes of a collective in a group. */
function drawBandwidth(width, data) {
  /** @type {[number, number, number, number]} */
  const box = [64, width - 18, 26, BANDWIDTH_HEIGHT - 44];
  const [left, right, top, bottom] = box;
  const sizes = data.points.map(({ size }) => size);
  const rates = [...data.points.flatMap(({ slowest, fastest }) => [slowest, fastest]), ...data.links.map(({ rate }) => rate)];
  const [lowX, highX] = [Math.min(...sizes) / 2, Math.max(...sizes) * 2];
  const [lowY, highY] = [Math.min(...rates) / 1.6, Math.max(...rates) * 1.8];
  const [x, y] = [logarithmic(lowX, highX, left, right), logarithmic(lowY, highY, bottom, top)];
  const chart = svg("svg", { width, height: BANDWIDTH_HEIGHT, role: "list", "aria-label": "Bus bandwidth by message size" });
  chart.append(axesOf({ x, y, xs: powerTicks(lowX, highX), ys: powerTicks(lowY, highY), labelX: (value) => decimal(value, 0), labelY: (value) => withUnit(value, "B/s"), nameX: "message size", nameY: "bus bandwidth", box }));
  for (const { name, rate } of data.links) {
    chart.append(svg("path", { class: "roof", d: `M${left} ${y(rate)}H${right}` }), svg("text", { class: "point-label", x: right, y: y(rate) - 6, "text-anchor": "end" }, `${name} ${withUnit(rate, "B/s")}`));
  }
  for (const members of seriesOfCollectives(data.points)) {
    chart.append(svg("path", { class: "bandwidth-line", stroke: css(tuned(members[0].colour)), d: members.map(({ size, busbw }, at) => `${at ? "L" : "M"}${x(size)} ${y(busbw)}`).join("") }));
  }
  for (const point of data.points) chart.append(collectiveMark(point, x, y, data));
  return chart;
}

/** The points of each collective, group and way of timing, by size. */
function seriesOfCollectives(points) {
  const groups = new Map();
  for (const point of points) {
    const key = JSON.stringify([point.collective, point.group, point.members, point.is_exact]);
    groups.set(key, [...(groups.get(key) ?? []), point]);
  }
  return [...groups.values()].map((members) => members.sort((one, other) => one.size - other.size));
}

/** A collective and size: its median, and a whisker from the slowest to the fastest call. */
function collectiveMark(point, x, y, data) {
  const colour = css(tuned(point.colour));
  const [at, middle] = [x(point.size), y(point.busbw)];
  const lines = () => [
    `${point.label}${point.group ? ` on ${point.group}` : ""}, ${decimal(point.size)}`,
    `${point.is_exact ? "" : "at least "}${withUnit(point.busbw, "B/s")} bus bandwidth over ${plural(point.count, "call")}`,
    `slowest ${withUnit(point.slowest, "B/s")}, fastest ${withUnit(point.fastest, "B/s")}`,
    ...data.links.map(({ name, rate }) => `${Math.round((100 * point.busbw) / rate)} % of ${name}`),
    point.members ? plural(point.members, "rank") : null,
    point.verdict,
  ];
  const mark = svg("g", { class: `spot op ${point.is_exact ? "" : "bound"}`, tabindex: 0, role: "listitem", "aria-label": lines().filter(Boolean).join("; ") },
    svg("path", { class: "whisker", d: `M${at - 3} ${y(point.slowest)}h6M${at} ${y(point.slowest)}V${y(point.fastest)}M${at - 3} ${y(point.fastest)}h6` }),
    svg("circle", { class: "hit", cx: at, cy: middle, r: 10 }),
    svg("circle", { class: "call-mark", cx: at, cy: middle, r: 5, fill: point.is_exact ? colour : "transparent", stroke: colour }));
  return explain(mark, lines);
}
