// Loss and step time by step, a line for each run.

import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, saveDrawing, section } from "./export.js";
import { fixed, scaleFor, tickStep, time, whole } from "./numbers.js";
import { linear } from "./plot.js";
import { badge, DASHES } from "./run_badges.js";
import { SMALL, textWidth } from "./text.js";
import { hideTip, showTip } from "./tooltip.js";

const TALL = 250;

/** Draws the section with the curves that at least one run has; nothing without any. */
export function curves() {
  const charts = [["loss", "Loss", "of rank 0"], ["step_ns", "Step time", "of the slowest rank, without the profiler"]].map(([key, title, note]) => ({ key, title, note, series: view.series.map((run) => run[key]) })).filter(({ series }) => series.some(Boolean));
  if (!charts.length) return;
  const reduced = charts.some(({ series }) => series.some((curve) => curve && curve.recorded > curve.steps.length));
  const card = section("curves", "Loss and step time", `by step${reduced ? "; of many neighbouring steps, the least and the greatest value are drawn" : ""}`, { nav: "Curves", csv: () => saveCsv("curves", curveRows(charts)) });
  const runs = view.runs.map((_, at) => at).filter((at) => charts.some(({ series }) => series[at]));
  card.append(el("ul", { class: "chart-keys", "aria-label": "Lines" }, ...runs.map((at) => el("li", {}, lineSign(at), badge(at), el("span", {}, view.runs[at].name)))));
  const panels = el("div", { class: "panels" });
  card.append(panels);
  for (const chart of charts) curvePanel(chart, panels);
}

/** A short piece of a run's line. */
const lineSign = (at) => svg("svg", { width: 26, height: 8, "aria-hidden": "true" }, svg("path", { class: `run-line run-${at}`, d: "M0 4H26", "stroke-dasharray": DASHES[at] }));

/** The values of all charts, for the CSV. */
function curveRows(charts) {
  const rows = charts.flatMap(({ key, series }) => series.flatMap((curve, at) => (curve ? curve.steps.map((step, index) => [key, view.runs[at].name, step, curve.values[index]]) : [])));
  return [["series", "run", "step", "value"], ...rows];
}

/** Adds a chart with its heading and buttons to `panels`. */
function curvePanel(chart, panels) {
  const host = el("div", { class: "chart" });
  const name = `${chart.key === "loss" ? "loss" : "step-time"}`;
  const take = (label, act) => el("button", { type: "button", class: "take", "aria-label": `${chart.title}: save as ${label}`, onclick: act }, label);
  const head = el("div", { class: "head" }, el("h3", {}, chart.title), el("p", { class: "note" }, chart.note), el("div", { class: "takes" }, take("PNG", () => saveSvg(name, host.firstChild)), take("SVG", () => saveDrawing(name, host.firstChild))));
  panels.append(el("div", { class: "panel" }, head, host));
  redrawn(host, () => host.replaceChildren(drawCurves(chart, host.clientWidth)));
}

/** The scale of a chart's values: times in the unit of the largest. */
function valueScale(chart, most) {
  if (chart.key === "loss") return { unit: "", size: 1 };
  return scaleFor(most);
}

/** The chart as an SVG element. The axis of times begins at 0 unless the lines would be flat. */
function drawCurves(chart, width) {
  const curves = chart.series.flatMap((curve, at) => (curve ? [{ ...curve, at }] : []));
  const steps = curves.flatMap(({ steps: all }) => [all[0], all.at(-1)]);
  const values = curves.flatMap((curve) => curve.values);
  const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const margin = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  const bounds = [low > 0 && low - margin < high * 0.25 ? 0 : low - margin, high + margin];
  const { unit, size } = valueScale(chart, high);
  const [left, right, top, bottom] = [58, width - 12, 16, TALL - 34];
  const x = linear(Math.min(...steps), Math.max(...steps), left, right);
  const y = linear(bounds[0], bounds[1], bottom, top);
  const ends = curves.map((curve) => `${view.runs[curve.at].name} from ${showValue(chart, curve.values[0])} to ${showValue(chart, curve.values.at(-1))}`);
  const picture = svg("svg", { width, height: TALL, role: "img", "aria-label": `${chart.title} by step: ${ends.join("; ")}` });
  picture.append(curveAxes({ x, y, left, right, bottom, bounds, unit, size, steps }));
  for (const { steps: all, values: course, at } of curves) {
    picture.append(svg("path", { class: `run-line run-${at}`, d: `M${all.map((step, index) => `${x(step).toFixed(1)} ${y(course[index]).toFixed(1)}`).join("L")}`, "stroke-dasharray": DASHES[at] || null }));
  }
  picture.append(crosshair(chart, curves, { x, left, right, top, bottom }));
  return picture;
}

const showValue = (chart, value) => (chart.key === "loss" ? fixed(value, 4) : time(value));

/** Grid lines and labels. */
function curveAxes({ x, y, left, right, bottom, bounds, unit, size, steps }) {
  const group = svg("g", { "aria-hidden": "true" });
  const [low, high] = bounds.map((bound) => bound / size);
  const step = tickStep(high - low, 5);
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value * size), y2: y(value * size) }), svg("text", { class: "tick", x: left - 8, y: y(value * size) + 4, "text-anchor": "end" }, fixed(value, digits)));
  }
  if (unit) group.append(svg("text", { class: "tick", x: left - 8, y: 8, "text-anchor": "end" }, unit));
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const apart = Math.max(1, tickStep(last - first || 1, (right - left) / (textWidth(whole(last), SMALL) + 30)));
  for (let at = Math.ceil(first / apart) * apart; at <= last; at += apart) group.append(svg("text", { class: "tick", x: x(at), y: bottom + 17, "text-anchor": "middle" }, whole(at)));
  group.append(svg("line", { class: "grid", x1: left, x2: right, y1: bottom, y2: bottom }), svg("text", { class: "tick", x: right, y: bottom + 32, "text-anchor": "end" }, "step"));
  return group;
}

/** The values of all runs at the step below the pointer. */
function crosshair(chart, curves, { x, left, right, top, bottom }) {
  const line = svg("line", { class: "reset", y1: top, y2: bottom, visibility: "hidden" });
  const field = svg("rect", { class: "hit", x: left, y: top, width: right - left, height: bottom - top });
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  field.addEventListener("pointermove", (event) => {
    const at = event.clientX - field.ownerSVGElement.getBoundingClientRect().left;
    const step = steps.reduce((best, value) => (Math.abs(x(value) - at) < Math.abs(x(best) - at) ? value : best), steps[0]);
    for (const name of ["x1", "x2"]) line.setAttribute(name, x(step));
    line.setAttribute("visibility", "visible");
    const values = curves.map((curve) => [view.runs[curve.at], curve.values[curve.steps.indexOf(step)]]).filter(([, value]) => value !== undefined);
    showTip([`step ${whole(step)}`, ...values.map(([{ letter, name }, value]) => `${letter} ${name}: ${showValue(chart, value)}`)], event.clientX, event.clientY);
  });
  field.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    hideTip();
  });
  return svg("g", {}, line, field);
}
