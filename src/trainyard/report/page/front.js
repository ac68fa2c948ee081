// Time against memory: the layouts that nothing as fast or faster needs less memory than, and the others that are shown.

import { scale, view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { brief, decimal, tickStep } from "./numbers.js";
import { chartKeys, DOT_HEADS, dotMark, dotRow, dressed, labeller, limitBeside, linear, logarithmic, roundTicks } from "./plot.js";
import { fitted, SMALL } from "./text.js";

const FRONT = 380;

/** Draws the section "Time against memory" from `view.planned.front` and `others`; nothing without them. */
export function front() {
  const { front: best, others } = view.planned;
  if (!best.length) return;
  const money = frontMoney() ? "; dollars go with the time of a step" : "";
  const card = section("front", "Time against memory", `each layout that needs less memory than all that are as fast or faster; shaded: where four of five measured steps are expected${money}; a label is layout · micro-batch · activation checkpointing`, {
    nav: "Trade-off", csv: () => saveCsv("plan-front", frontRows()), png: () => saveSvg("plan-front", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const keys = [["Pareto front", dressed("key-best")], ["Interval", dressed("key-band")]];
  if (others.length) keys.push(["Fast, but not on the Pareto front", dressed("key-other")]);
  card.append(chartKeys("Signs", keys), host, details("The Pareto front as a table", frontRows));
  redrawn(host, () => host.replaceChildren(drawFront(host.clientWidth)));
}

const frontRows = () => [["best", ...DOT_HEADS], ...view.planned.front.map((dot) => ["yes", ...dotRow(dot)]), ...view.planned.others.map((dot) => ["no", ...dotRow(dot)])];

/** Dollars per ns of step time, if there is a price: at a fixed number of devices they are proportional. */
function frontMoney() {
  const [dot] = view.planned.front;
  return dot?.dollars && dot.wall_ns ? dot.dollars / dot.wall_ns : 0;
}

/** The chart as an SVG element: step time (logarithmic) against reserved memory, with intervals and the device's capacity. */
function drawFront(width) {
  const { front: best, others } = view.planned;
  const all = [...best, ...others].filter((dot) => dot.low > 0);
  const limit = limitBeside(all.map((dot) => dot.reserved));
  const [left, right, top, bottom] = [66, width - 16, frontMoney() ? 40 : 18, FRONT - 42];
  const x = logarithmic(Math.min(...all.map((dot) => dot.low)) * 0.97, Math.max(...all.map((dot) => dot.high)) * 1.03, left, right);
  const most = Math.max(limit, ...all.map((dot) => dot.reserved)) * 1.04;
  const y = linear(0, most, bottom, top);
  const chart = svg("svg", { width, height: FRONT, role: "list", "aria-label": `Step time against memory; ${view.title}` });
  chart.append(frontAxes({ x, y, left, right, top, bottom, all, most }));
  const edge = (bound) => best.map((dot) => `${x(dot[bound]).toFixed(1)} ${y(dot.reserved).toFixed(1)}`);
  chart.append(svg("path", { class: "band", d: `M${[...edge("low"), ...edge("high").reverse()].join("L")}Z` }));
  chart.append(svg("path", { class: "curve", d: `M${edge("wall_ns").join("L")}` }));
  if (limit) chart.append(svg("line", { class: "limit", x1: left, x2: right, y1: y(limit), y2: y(limit) }), svg("text", { class: "tick", x: right, y: y(limit) - 5, "text-anchor": "end" }, `a device has ${decimal(limit)}`));
  others.forEach((dot) => chart.append(dotMark(dot, x(dot.wall_ns), y(dot.reserved), "other", 3.5)));
  best.forEach((dot) => chart.append(dotMark(dot, x(dot.wall_ns), y(dot.reserved), "best")));
  chart.append(frontLabels(best, x, y, [left, right, top, bottom]));
  return chart;
}

/** The ends first, then the points between them, as long as there is space. */
function frontLabels(best, x, y, box) {
  const group = svg("g", { "aria-hidden": "true" });
  const place = labeller(box, best.map((dot) => [x(dot.wall_ns), y(dot.reserved)]));
  const order = [0, best.length - 1];
  for (let step = best.length; step >= 1; step /= 2) for (let at = 0; at < best.length; at += step) order.push(Math.floor(at));
  for (const at of new Set(order)) {
    const dot = best[at];
    const label = place(fitted(dot.label, 360, SMALL), x(dot.wall_ns), y(dot.reserved));
    if (label) group.append(label);
  }
  return group;
}

/** Grid lines and labels of time and memory and, if prices are known, dollars along the top. */
function frontAxes({ x, y, left, right, top, bottom, all, most }) {
  const group = svg("g", { "aria-hidden": "true" });
  const [low, high] = [Math.min(...all.map((dot) => dot.low)), Math.max(...all.map((dot) => dot.high))];
  for (const ns of roundTicks(low / scale.size, high / scale.size, (value) => x(value * scale.size), 46)) {
    const at = x(ns * scale.size);
    group.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
    group.append(svg("text", { class: "tick", x: at, y: bottom + 17, "text-anchor": "middle" }, String(Number(ns.toPrecision(3)))));
  }
  group.append(svg("text", { class: "tick", x: right, y: bottom + 34, "text-anchor": "end" }, `step, ${scale.unit} (logarithmic)`));
  const step = tickStep(most, 6);
  for (let bytes = 0; bytes <= most; bytes += step) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(bytes), y2: y(bytes) }));
    group.append(svg("text", { class: "tick", x: left - 8, y: y(bytes) + 4, "text-anchor": "end" }, bytes ? decimal(bytes, 0) : "0"));
  }
  const rate = frontMoney();
  if (rate) {
    for (const dollars of roundTicks(low * rate, high * rate, (value) => x(value / rate), 60)) {
      group.append(svg("text", { class: "tick", x: x(dollars / rate), y: top - 8, "text-anchor": "middle" }, `$${brief(dollars)}`));
      group.append(svg("line", { class: "grid", x1: x(dollars / rate), x2: x(dollars / rate), y1: top - 4, y2: top }));
    }
    group.append(svg("text", { class: "tick", x: left - 8, y: top - 8, "text-anchor": "end" }, "to pay"));
  }
  return group;
}
