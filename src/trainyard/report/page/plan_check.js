// A plan against the measurement: the prediction interval with the measured step, and the memory.

import { scale, view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, saveDrawing, section } from "./export.js";
import { details } from "./frame.js";
import { fixed, size, tickStep, time } from "./numbers.js";
import { chartKeys, dressed, linear } from "./plot.js";
import { svgBadge } from "./run_badges.js";
import { explain } from "./tooltip.js";

const BAND = 34;

/** Draws the section "Plan against measurement"; nothing without a plan. */
export function planCheck() {
  const checks = view.plan_checks.flatMap((check, at) => (check ? [{ check, run: view.runs[0].kind === "plan" ? at + 1 : 0 }] : []));
  if (!checks.length) return;
  const inside = checks.filter(({ check }) => check.position === "inside").length;
  const card = section("plan", "Plan against measurement", `${inside} of ${checks.length} measured ${checks.length === 1 ? "step" : "steps"} in the plan's 80 % interval`, {
    nav: "Plan", csv: () => saveCsv("plan-check", checkRows(checks)), png: () => saveSvg("plan-check", host.firstChild), svg: () => saveDrawing("plan-check", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  card.append(chartKeys("Signs", [["80 % interval", dressed("key-band")], ["Predicted", dressed("key-whisker")], ["Measured", dressed("key-asked")]]), host);
  for (const { check } of checks) if (check.memory === "allocated") card.append(memoryLine(check));
  card.append(details("The check as a table", () => checkRows(checks)));
  redrawn(host, () => host.replaceChildren(drawChecks(checks, host.clientWidth)));
}

const checkRows = (checks) => [
  ["run", "predicted ns", "low ns", "high ns", "measured ns", "clock", "position", "predicted bytes", "measured bytes", "memory"],
  ...checks.map(({ check, run }) => [view.runs[run].name, check.predicted_ns, check.low_ns, check.high_ns, check.measured_ns, check.clock, check.position, check.predicted_bytes, check.measured_bytes, check.memory]),
];

/** The chart as an SVG element: for each run, the interval as a band and the measured step as a dot. */
function drawChecks(checks, width) {
  const values = checks.flatMap(({ check }) => [check.low_ns, check.high_ns, ...(check.measured_ns ? [check.measured_ns] : [])]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = (high - low) * 0.12 || high * 0.05 || 1;
  const [left, right, bottom] = [40, width - 20, checks.length * BAND + 8];
  const x = linear(Math.max(0, low - margin), high + margin, left, right);
  const chart = svg("svg", { width, height: bottom + 24, role: "list", "aria-label": "Plan against measurement" });
  const step = tickStep(high + 2 * margin - low, (right - left) / 90);
  const digits = Math.max(0, -Math.floor(Math.log10(step / scale.size) + 1e-9));
  for (let ns = Math.ceil(Math.max(0, low - margin) / step) * step; ns <= high + margin; ns += step) {
    chart.append(svg("line", { class: "grid", x1: x(ns), x2: x(ns), y1: 2, y2: bottom }), svg("text", { class: "tick", x: x(ns), y: bottom + 17, "text-anchor": "middle" }, fixed(ns / scale.size, digits)));
  }
  chart.append(svg("text", { class: "tick", x: left - 12, y: bottom + 17, "text-anchor": "end" }, scale.unit));
  checks.forEach(({ check, run }, at) => chart.append(checkMark(check, run, x, at * BAND + BAND / 2 + 4, [left, right])));
  return chart;
}

/** One run's interval, prediction and measurement. */
function checkMark(check, run, x, middle, [left, right]) {
  const lines = () => [
    view.runs[run].name,
    `predicted ${time(check.predicted_ns)}, 80 % interval ${time(check.low_ns)} to ${time(check.high_ns)}`,
    check.measured_ns ? `measured ${time(check.measured_ns)} (${check.clock}): ${check.position} the interval`.replace("inside the", "in the") : "no step was measured",
  ];
  const group = svg("g", { class: `check ${check.position}`, tabindex: 0, role: "listitem", "aria-label": lines().join("; ") });
  group.append(svgBadge(run, left - 18, middle));
  group.append(svg("rect", { class: "band strong", x: x(check.low_ns), y: middle - 9, width: Math.max(2, x(check.high_ns) - x(check.low_ns)), height: 18, rx: 3 }));
  group.append(svg("line", { class: "whisker", x1: x(check.predicted_ns), x2: x(check.predicted_ns), y1: middle - 9, y2: middle + 9 }));
  if (check.measured_ns) {
    const at = x(check.measured_ns);
    const after = at < right - 90;
    group.append(svg("circle", { class: "measured", cx: at, cy: middle, r: 5.5 }), svg("text", { class: "value", x: at + (after ? 11 : -11), y: middle + 4, "text-anchor": after ? "start" : "end" }, time(check.measured_ns)));
  }
  return explain(group, lines);
}

/** The memory in words. */
function memoryLine({ predicted_bytes: predicted, measured_bytes: measured }) {
  const change = predicted ? ` (${fixed((100 * (measured - predicted)) / predicted, 1)} %)` : "";
  return el("p", { class: "small" }, `Peak of allocated memory: predicted ${size(predicted)}, measured ${size(measured)}${change}.`);
}
