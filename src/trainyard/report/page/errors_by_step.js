// Errors step by step: the medians of error and noise, and the largest error relative to its limit, for each phase.

import { axesOf } from "./axes.js";
import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { tickStep, whole } from "./numbers.js";
import { chartKeys, dressed, linear } from "./plot.js";
import { powerLabel, ratio } from "./relative_errors.js";
import { explain } from "./tooltip.js";

const [PANEL, GAP] = [150, 58];

/** Draws the section "Errors by step" of more than one step. */
export function errorsByStep() {
  const phases = [...new Set(view.steps.map(({ phase }) => phase))];
  if (!view.steps.length) return;
  const card = section("steps", "Errors by step", "above: medians over the tensors of a phase; below: the largest error relative to its limit", { nav: "Steps", csv: () => saveCsv("steps", stepRows()) });
  card.append(chartKeys("Lines", [["error of B", dressed("key-level")], ["noise: rounding of A", dressed("key-ideal")], ["largest error / limit", dressed("key-point")], ["limit", dressed("key-limit")]]));
  const panels = el("div", { class: "panels" });
  card.append(panels);
  const [levels, ratios] = [powersOf(view.steps.flatMap(({ error, noise }) => [error, noise])), powersOf([0.1, 10, ...view.steps.map(({ of_limit: value }) => value)])];
  for (const phase of phases) {
    const steps = view.steps.filter((step) => step.phase === phase);
    const host = el("div", { class: "chart" });
    const take = (name, act) => el("button", { type: "button", class: "take", "aria-label": `Errors by step, ${phase}: save as ${name}`, onclick: act }, name);
    panels.append(el("div", { class: "panel" }, el("div", { class: "head" }, el("h3", {}, phase), el("div", { class: "takes" }, take("PNG", () => saveSvg(`errors-${phase}`, host.firstChild)), take("SVG", () => saveDrawing(`errors-${phase}`, host.firstChild)))), host));
    redrawn(host, () => host.replaceChildren(drawPhase(phase, steps, levels, ratios, host.clientWidth)));
  }
  card.append(details("The steps as a table", stepRows));
}

/** The rows of the CSV and of the table. */
const stepRows = () => [["step", "phase", "error", "noise", "of_limit", "rho", "different", "undetectable", "tensors"],
  ...view.steps.map((row) => [String(row.step), row.phase, ...[row.error, row.noise, row.of_limit, row.rho].map((value) => (value === null ? "" : String(Number(value.toPrecision(4))))), row.different, row.undetectable, row.tensors])];

/** The powers of ten [low, high] between which positive values lie; at most 20 powers, up to the largest. */
export function powersOf(values) {
  const powers = values.filter((value) => value > 0).map(Math.log10);
  if (!powers.length) return [-8, 0];
  const high = Math.ceil(powers.reduce((most, power) => Math.max(most, power)));
  const low = Math.max(high - 20, Math.floor(powers.reduce((least, power) => Math.min(least, power))));
  return [low, Math.max(high, low + 1)];
}

/** Both charts of a phase, one above the other. */
function drawPhase(phase, steps, levels, ratios, width) {
  const chart = svg("svg", { width, height: 2 * PANEL + GAP + 62, role: "list", "aria-label": `Errors by step, ${phase}` });
  const [left, right] = [58, width - 14];
  const [first, last] = [steps[0].step, steps.at(-1).step];
  const x = linear(first - 0.2, Math.max(last, first + 1) + 0.2, left, right);
  const apart = Math.max(1, tickStep(last - first || 1, (right - left) / 60));
  const xs = Array.from({ length: Math.floor((last - first) / apart) + 1 }, (_, at) => first + at * apart);
  const panel = (top, [low, high], nameY, nameX) => {
    const y = linear(low, high, top + PANEL, top);
    const stride = Math.ceil((high - low) / 6);
    const ys = Array.from({ length: high - low + 1 }, (_, at) => low + at).filter((power) => power % stride === 0);
    chart.append(axesOf({ x, y, xs, ys, labelX: nameX ? whole : () => "", labelY: powerLabel, nameX, nameY, box: [left, right, top, top + PANEL] }));
    return (value) => y(Math.min(high, Math.max(low, value > 0 ? Math.log10(value) : low)));
  };
  const above = panel(26, levels, "relative error", "");
  const below = panel(26 + PANEL + GAP, ratios, "error / limit", "step");
  const line = (name, at, place) => {
    const known = steps.filter((step) => at(step) !== null);
    return svg("path", { class: name, d: known.map((step, index) => `${index ? "L" : "M"}${x(step.step).toFixed(1)} ${place(at(step)).toFixed(1)}`).join("") });
  };
  chart.append(
    svg("line", { class: "limit", x1: left, x2: right, y1: below(1), y2: below(1) }),
    line("ideal-line", ({ noise }) => noise, above), line("curve", ({ error }) => error, above), line("curve faint", ({ of_limit: value }) => value, below),
    ...steps.map((step) => stepMark(step, phase, x(step.step), above, below)));
  return chart;
}

/** The points of a step, with its numbers. */
function stepMark(step, phase, at, above, below) {
  const lines = [`Step ${whole(step.step)}, ${phase}`, `median error ${ratio(step.error)}, median noise ${ratio(step.noise)}`, `largest error ${ratio(step.of_limit)} of its limit, rho ${ratio(step.rho)}`, `${whole(step.different)} of ${whole(step.tensors)} tensors different, ${whole(step.undetectable)} undetectable`];
  const dot = (value, place, name) => (value === null ? null : svg("circle", { class: name, cx: at, cy: place(value), r: 3.5 }));
  const mark = svg("g", { class: "step-mark", tabindex: 0, role: "listitem", "aria-label": lines.join("; ") },
    svg("rect", { class: "hit", x: at - 9, y: 26, width: 18, height: 2 * PANEL + GAP }),
    dot(step.noise, above, "noise-dot"), dot(step.error, above, "error-dot"), dot(step.of_limit, below, step.of_limit > 1 ? "ratio-dot above" : "ratio-dot"));
  return explain(mark, () => lines);
}
