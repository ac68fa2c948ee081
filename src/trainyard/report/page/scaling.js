// Scaling over numbers of devices: tokens per second with the same batch and with a growing one, and dollars against days.

import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { brief, fixed, whole } from "./numbers.js";
import { ABOVE, chartKeys, DOT_HEADS, dotLines, dotMark, dotRow, dressed, labeller, logarithmic, roundTicks } from "./plot.js";
import { SMALL, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

const PANEL = 300;

/** Draws the section "Scaling" from `view.planned.strong` and `weak`; nothing without them. */
export function scaling() {
  const { strong, weak, summary } = view.planned;
  if (!strong.length) return;
  const card = section("scaling", "Scaling", summary, { nav: "Scaling", csv: () => saveCsv("plan-scaling", scalingRows()) });
  const keys = [["Fastest layout at each number", dressed("key-best")], ["asked for", dressed("key-asked")], ["Interval", dressed("key-whisker")], ["Ideal: linear scaling", dressed("key-ideal")]];
  if ([...strong, ...weak].some((dot) => dot.reason)) keys.push(["No layout", dressed("key-none")]);
  const panels = el("div", { class: "panels" });
  card.append(chartKeys("Signs", keys), panels, details("The points as a table", scalingRows));
  panel(panels, "Same batch (strong scaling)", "strong-scaling", strong, drawScaling);
  panel(panels, "Batch grows with the devices (weak scaling)", "weak-scaling", weak, drawScaling);
  const paid = strong.filter((dot) => dot.days > 0 && dot.dollars !== null && dot.dollars > 0);
  const days = paid.map((dot) => dot.days);
  if (Math.max(...days) > 1.2 * Math.min(...days)) panel(panels, "Cost against training time, same batch", "time-and-money", paid, drawMoney);
}

/** Adds a chart with a title and a button that saves it. `draw(dots, width, title)`: returns the SVG element. */
function panel(panels, title, name, dots, draw) {
  const host = el("div", { class: "chart" });
  const take = el("button", { type: "button", class: "take", "aria-label": `${title}: save as PNG`, onclick: () => saveSvg(name, host.firstChild) }, "PNG");
  panels.append(el("div", { class: "panel" }, el("div", { class: "head" }, el("h3", {}, title), el("div", { class: "takes" }, take)), host));
  redrawn(host, () => host.replaceChildren(draw(dots, host.clientWidth, title)));
}

const scalingRows = () => [["batch", ...DOT_HEADS], ...view.planned.strong.map((dot) => ["same", ...dotRow(dot)]), ...view.planned.weak.map((dot) => ["grows", ...dotRow(dot)])];

/** A chart of throughput against devices, both logarithmic, with intervals and the line of linear scaling. */
function drawScaling(dots, width, title) {
  const known = dots.filter((dot) => !dot.reason && dot.tokens_per_s > 0 && dot.low > 0);
  const [left, right, top, bottom] = [52, width - 14, 22, PANEL - 40];
  const chart = svg("svg", { width, height: PANEL, role: "list", "aria-label": title });
  const x = logarithmic(dots[0].devices / 1.25, dots.at(-1).devices * 1.25, left, right);
  if (!known.length) return chart;
  const ideal = (dot) => (known[0].tokens_per_s * dot.devices) / known[0].devices;
  const rates = known.flatMap((dot) => [dot.tokens_per_s * (dot.wall_ns / dot.low), dot.tokens_per_s * (dot.wall_ns / dot.high), ideal(dot)]);
  const [low, high] = [Math.min(...rates) * 0.85, Math.max(...rates) * 1.2];
  const y = logarithmic(low, high, bottom, top);
  chart.append(scalingAxes(dots, { x, y, left, right, top, bottom, low, high }));
  const ends = [known[0], known.at(-1)];
  chart.append(svg("path", { class: "ideal-line", d: `M${ends.map((dot) => `${x(dot.devices)} ${y(ideal(dot))}`).join("L")}` }));
  chart.append(svg("path", { class: "curve", d: `M${known.map((dot) => `${x(dot.devices)} ${y(dot.tokens_per_s)}`).join("L")}` }));
  for (const dot of dots) {
    if (dot.reason) {
      chart.append(noneMark(dot, x(dot.devices), bottom - 8));
      continue;
    }
    if (!known.includes(dot)) continue;
    const at = x(dot.devices);
    const [from, to] = [dot.high, dot.low].map((bound) => y(dot.tokens_per_s * (dot.wall_ns / bound)));
    chart.append(svg("path", { class: "whisker", d: `M${at - 3} ${from}h6M${at} ${from}V${to}M${at - 3} ${to}h6` }));
    chart.append(dotMark(dot, at, y(dot.tokens_per_s), dot.devices === view.planned.devices ? "best asked" : "best"));
  }
  chart.append(efficiencies(known, x, y, right));
  return chart;
}

/** A label below or right of a point, if it fits: throughput per device relative to the smallest number of devices. */
function efficiencies(known, x, y, right) {
  const group = svg("g", { "aria-hidden": "true" });
  known.forEach((dot, at) => {
    const told = `${fixed(100 * dot.efficiency, 0)} %`;
    const apart = at ? x(dot.devices) - x(known[at - 1].devices) : 99;
    if (apart < textWidth(told, SMALL) + 2) return;
    const last = x(dot.devices) + 7 + textWidth(told, SMALL) > right;
    group.append(svg("text", { class: "point-label", x: x(dot.devices) + (last ? -7 : 7), y: y(dot.tokens_per_s) + (last ? -8 : 15), "text-anchor": last ? "end" : "start" }, told));
  });
  return group;
}

/** A cross for a number of devices without a layout; its tooltip has the reason. */
function noneMark(dot, x, y) {
  const mark = svg("g", { class: "spot none", tabindex: 0, role: "listitem", "aria-label": dotLines(dot).join("; ") },
    svg("circle", { class: "hit", cx: x, cy: y, r: 11 }), svg("path", { class: "cross", d: `M${x - 4} ${y - 4}l8 8M${x - 4} ${y + 4}l8 -8` }));
  return explain(mark, () => dotLines(dot));
}

/** Grid lines and labels of a scaling chart. `low`, `high`: range of tokens per second. */
function scalingAxes(dots, { x, y, left, right, top, bottom, low, high }) {
  const group = svg("g", { "aria-hidden": "true" });
  for (const value of roundTicks(low, high, y, 24)) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    group.append(svg("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, brief(value)));
  }
  let last = -99;
  for (const { devices } of dots) {
    const [at, told] = [x(devices), whole(devices)];
    const half = textWidth(told, SMALL) / 2;
    group.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
    if (at - half < last + 6) continue;
    last = at + half;
    group.append(svg("text", { class: devices === view.planned.devices ? "tick loud" : "tick", x: at, y: bottom + 17, "text-anchor": "middle" }, told));
  }
  group.append(svg("text", { class: "tick", x: left - 46, y: top - 10 }, "tokens/s"), svg("text", { class: "tick", x: right, y: bottom + 34, "text-anchor": "end" }, "devices"));
  return group;
}

/** Days against dollars, a point for each number of devices: both axes logarithmic. */
function drawMoney(dots, width, title) {
  const [left, right, top, bottom] = [52, width - 14, 22, PANEL - 40];
  const chart = svg("svg", { width, height: PANEL, role: "list", "aria-label": title });
  const range = (values, slack) => [Math.min(...values) / slack, Math.max(...values) * slack];
  const [days, dollars] = [range(dots.map((dot) => dot.days), 1.25), range(dots.map((dot) => dot.dollars), 1.12)];
  const [x, y] = [logarithmic(...days, left, right), logarithmic(...dollars, bottom, top)];
  for (const value of roundTicks(...dollars, y, 24)) {
    chart.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }), svg("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, brief(value)));
  }
  for (const value of roundTicks(...days, x, 34)) {
    chart.append(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: bottom }), svg("text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, brief(value)));
  }
  chart.append(svg("text", { class: "tick", x: left - 46, y: top - 10 }, "$"), svg("text", { class: "tick", x: right, y: bottom + 34, "text-anchor": "end" }, "days"));
  chart.append(svg("path", { class: "curve", d: `M${dots.map((dot) => `${x(dot.days)} ${y(dot.dollars)}`).join("L")}` }));
  const place = labeller([left - 10, right, top - 14, bottom], dots.map((dot) => [x(dot.days), y(dot.dollars)]), ABOVE);
  for (const dot of dots) {
    const asked = dot.devices === view.planned.devices;
    chart.append(dotMark(dot, x(dot.days), y(dot.dollars), asked ? "best asked" : "best"));
  }
  for (const dot of dots) {
    const label = place(whole(dot.devices), x(dot.days), y(dot.dollars), dot.devices === view.planned.devices ? "point-label loud" : "point-label");
    if (label) chart.append(label);
  }
  return chart;
}
