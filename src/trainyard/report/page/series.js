// Loss and step time of a stored run, step by step, with its faults, resumes and checkpoints.

import { axesOf, evenTicks } from "./axes.js";
import { svg, el } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { fixed, plural, scaleFor, time, whole } from "./numbers.js";
import { chartKeys, dressed, linear } from "./plot.js";
import { explain, hideTip, showTip } from "./tooltip.js";

const [SERIES_HEIGHT, EVENT_ROOM] = [190, 26];
const EVENT_NAMES = { fault: "Fault", resume: "Resumed", checkpoint: "Checkpoint" };

/** Draws the section "Loss and step time" of a run. */
export function series(data) {
  if (!data) return;
  const hasLoss = data.losses.some((loss) => loss !== null);
  const kinds = [...new Set(data.events.map(({ kind }) => kind))];
  const repeated = data.stride > 1 ? `; every ${data.stride}th step is shown` : "";
  const card = section("series", hasLoss ? "Loss and step time" : "Step time", `${plural(data.steps.length, "step")}; a step takes as long as on its slowest rank${repeated}`, {
    nav: "Series",
    csv: () => saveCsv("series", seriesRows(data)),
    png: () => saveSvg("series", host.firstChild),
    svg: () => saveDrawing("series", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const keys = [["Measured step", dressed("key-point")], ["Warm-up, profiled or skipped step", dressed("key-hollow")], ...kinds.map((kind) => [EVENT_NAMES[kind], dressed(`key-event ${kind}`)])];
  card.append(chartKeys("Signs", keys), host, details("The steps as a table", () => seriesRows(data)));
  redrawn(host, () => host.replaceChildren(drawSeries(host.clientWidth, data, hasLoss)));
}

/** A row for each step after the headings; then a row for each event. */
function seriesRows(data) {
  const eventsAt = (step) => data.events.filter((event) => event.step === step).map(({ label, text }) => [label, text].filter(Boolean).join(": ")).join("; ");
  const rows = data.steps.map((step, at) => [step, data.wall_ns[at], data.losses[at] === null ? "" : String(data.losses[at]), data.excluded[at], eventsAt(step)]);
  return [["step", "wall_ns", "loss", "excluded", "events"], ...rows];
}

/** Loss above, step time below, one axis of steps; events as lines through both. */
function drawSeries(width, data, hasLoss) {
  const [left, right] = [66, width - 14];
  const x = linear(data.steps[0], Math.max(data.steps.at(-1), data.steps[0] + 1), left, right);
  const panels = hasLoss ? ["loss", "time"] : ["time"];
  const height = EVENT_ROOM + panels.length * SERIES_HEIGHT + 34;
  const chart = svg("svg", { width, height, role: "list", "aria-label": "Loss and step time by step" });
  const unit = scaleFor(Math.max(...data.wall_ns));
  panels.forEach((panel, at) => {
    const top = EVENT_ROOM + at * SERIES_HEIGHT + 22;
    const bottom = top + SERIES_HEIGHT - 46;
    const values = panel === "loss" ? data.losses : data.wall_ns;
    const [low, high] = seriesRange(values, panel === "time" ? data.excluded : null);
    const y = linear(low, high, bottom, top);
    const ys = panel === "loss" ? evenTicks(low, high, 4) : evenTicks(low / unit.size, high / unit.size, 4).map((value) => value * unit.size);
    const digits = digitsFor(panel === "loss" ? ys : ys.map((value) => value / unit.size));
    chart.append(axesOf({
      x, y, xs: evenTicks(data.steps[0], data.steps.at(-1), Math.max(2, (right - left) / 80)).filter((step) => step === Math.round(step)), ys,
      labelX: at === panels.length - 1 ? whole : () => "", labelY: (value) => fixed(panel === "loss" ? value : value / unit.size, digits),
      nameX: at === panels.length - 1 ? "step" : "", nameY: panel === "loss" ? ["loss", data.loss_unit].filter(Boolean).join(", ") : `step time, ${unit.unit}`,
      box: [left, right, top, bottom],
    }));
    chart.append(...curveOf(data, values, x, y, low, high, panel));
  });
  chart.append(...data.events.filter(({ kind }) => kind === "checkpoint").map((event) => checkpointMark(event, x(event.step), height - 34 - 24)));
  const spread = spreadEvents(data.events.filter(({ kind }) => kind !== "checkpoint"), x);
  chart.append(...spread.map(([event, at]) => eventMark(event, x(event.step), at, EVENT_ROOM, height - 58)));
  chart.append(seriesPointer(data, x, [left, right, EVENT_ROOM + 10, height - 58]));
  return chart;
}

/** The range of the axis: from the least to the greatest value, without the extremes of excluded steps. */
function seriesRange(values, excluded) {
  const counted = values.filter((value, at) => value !== null && !(excluded && excluded[at]));
  const known = counted.length > 1 ? counted : values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const slack = 0.08 * (high - low || Math.abs(high) || 1);
  return [low - slack, high + slack];
}

/** Decimals that tell the ticks apart. */
function digitsFor(ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  return Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
}

/** The line through all steps with a value, and points; values beyond the axis are drawn at its edge. */
function curveOf(data, values, x, y, low, high, panel) {
  const inside = (value) => y(Math.min(high, Math.max(low, value)));
  const shown = values.flatMap((value, at) => (value === null ? [] : [at]));
  const line = (members) => members.map((at, position) => `${position ? "L" : "M"}${x(data.steps[at]).toFixed(1)} ${inside(values[at]).toFixed(1)}`).join("");
  const dots = (members) => members.map((at) => `M${x(data.steps[at]).toFixed(1)} ${inside(values[at]).toFixed(1)}h0`).join("");
  const many = shown.length > 400;
  const parts = [svg("path", { class: panel === "loss" ? "curve" : "curve faint", d: line(shown) })];
  const outside = shown.filter((at) => data.excluded[at]);
  if (!many) parts.push(svg("path", { class: "points", d: dots(shown.filter((at) => !data.excluded[at])) }));
  if (outside.length) parts.push(svg("path", { class: "points excluded", d: dots(outside) }));
  return parts;
}

/** A tick at the bottom where the job saves a checkpoint. */
const checkpointMark = ({ step }, at, bottom) => explain(svg("path", { class: "event checkpoint", d: `M${at} ${bottom}v-9` }), () => [`Checkpoint after step ${whole(step)}`, "by the configuration of the job"]);

/** Positions of the flags of events, so that those of neighbouring steps do not cover each other. */
function spreadEvents(events, x) {
  let last = -99;
  return [...events].sort((one, other) => one.step - other.step).map((event) => {
    const at = Math.max(x(event.step), last + 13);
    last = at;
    return [event, at];
  });
}

/** A line through the panels with a flag, for a fault or a resume. */
function eventMark({ kind, step, label, text }, at, flagAt, top, bottom) {
  const lines = () => [`${label}, step ${whole(step)}`, text];
  const flag = kind === "fault" ? `M${flagAt - 6} ${top - 10}h12l-6 10z` : `M${flagAt - 5} ${top - 10}l10 5l-10 5z`;
  const mark = svg("g", { class: `event ${kind}`, tabindex: 0, role: "listitem", "aria-label": lines().filter(Boolean).join(": ") },
    svg("path", { class: "stem", d: `M${flagAt} ${top}L${at} ${top + 12}V${bottom}` }), svg("path", { class: "flag", d: flag }), svg("rect", { class: "hit", x: flagAt - 8, y: top - 14, width: 16, height: 20 }));
  return explain(mark, lines);
}

/** The step below the pointer: its line and tooltip. */
function seriesPointer(data, x, [left, right, top, bottom]) {
  const ring = svg("line", { class: "ring", y1: top, y2: bottom, visibility: "hidden" });
  const field = svg("rect", { class: "hit", x: left, y: top, width: Math.max(0, right - left), height: bottom - top });
  field.addEventListener("pointermove", (event) => {
    const own = field.ownerSVGElement.getBoundingClientRect();
    const distance = (at) => Math.abs(x(data.steps[at]) - (event.clientX - own.left));
    const at = data.steps.reduce((best, _, candidate) => (distance(candidate) < distance(best) ? candidate : best), 0);
    ring.setAttribute("x1", x(data.steps[at]));
    ring.setAttribute("x2", x(data.steps[at]));
    ring.setAttribute("visibility", "visible");
    showTip([`Step ${whole(data.steps[at])}`, time(data.wall_ns[at]), data.losses[at] === null ? null : `loss ${fixed(data.losses[at], 4)}`, data.excluded[at]], event.clientX, event.clientY);
  });
  field.addEventListener("pointerleave", () => {
    ring.setAttribute("visibility", "hidden");
    hideTip();
  });
  return svg("g", {}, field, ring);
}
