// A series with its changes, from top to bottom: the chart, the changes, and the differences between the runs.

import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { actions, details, foot, hero } from "./frame.js";
import { fixed, tickStep } from "./numbers.js";
import { chartKeys, dressed, linear } from "./plot.js";
import { readHash, showTheme, state } from "./state.js";
import { facts } from "./tables.js";
import { SMALL, textWidth } from "./text.js";
import { explain, hideTip, showTip } from "./tooltip.js";

const COURSE = 380;

const shown = (value) => `${fixed(value / view.scale.size, view.scale.digits)}${view.scale.unit ? ` ${view.scale.unit}` : ""}`;
const who = ({ run, commit, time }) => [commit && `commit ${commit.slice(0, 10)}`, run && `run ${run}`, time.slice(0, 16).replace("T", " ")].filter(Boolean);

/** Draws the section with the series: points, levels and changes, with its legend and table. */
function course() {
  const card = section("course", view.metric, "dots are points, lines are levels with their 95 % intervals, marks are changes with the range of their position", {
    nav: "History", csv: () => saveCsv("history", pointRows()), png: () => saveSvg("history", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const kinds = new Set(view.changes.map(({ look }) => look));
  const keys = [["Point", dressed("key-point")], ["Level", dressed("key-level")]];
  for (const [look, label] of [["worse", "Worse"], ["better", "Better"], ["accepted", "Accepted"], ["gone", "Excursion or spike"]]) {
    if (kinds.has(look)) keys.push([label, dressed(`key-change ${look}`)]);
  }
  card.append(chartKeys("Signs", keys), host, details("The points as a table", pointRows));
  redrawn(host, () => host.replaceChildren(drawCourse(host.clientWidth)));
}

const pointRows = () => [["point", "value", "run", "commit", "time"], ...view.points.map(({ value, run, commit, time }, at) => [at, value, run, commit, time])];

/** The chart as an SVG element. Values beyond the axis are drawn at its edge. */
function drawCourse(width) {
  const { points } = view;
  const values = points.map(({ value }) => value);
  const [left, right, top, bottom] = [72, width - 16, 34, COURSE - 42];
  const x = linear(-0.5, Math.max(1, points.length - 0.5), left, right);
  const [low, high] = view.range;
  const y = linear(low, high, bottom, top);
  const inside = (value) => y(Math.min(high, Math.max(low, value)));
  const chart = svg("svg", { width, height: COURSE, role: "list", "aria-label": view.title });
  chart.append(courseAxes({ x, y, left, right, top, bottom, low, high }));
  for (const change of view.changes) chart.append(changeBand(change, x, top, bottom));
  for (const { start, stop, from, to, least, most } of view.levels) {
    const [begin, end] = [x(start - 0.5), x(stop - 0.5)];
    if (most > least) chart.append(svg("rect", { class: "level-band", x: begin, y: inside(most), width: Math.max(1, end - begin), height: Math.max(1, inside(least) - inside(most)) }));
    chart.append(svg("path", { class: "level", d: `M${begin} ${inside(from)}L${end} ${inside(to)}` }));
  }
  chart.append(svg("path", { class: points.length > 1500 ? "points many" : "points", d: values.map((value, at) => `M${x(at).toFixed(1)} ${inside(value).toFixed(1)}h0`).join("") }));
  chart.append(pointer({ x, inside, left, right, top, bottom }));
  view.changes.forEach((change) => chart.append(changeMark(change, x, top, bottom)));
  return chart;
}

/** The day of an ISO `time`, or its hour and minute if the previous label is of the same day. */
const dateLabel = (time, previousDay) => (time.slice(0, 10) === previousDay && time.length >= 16 ? time.slice(11, 16) : time.slice(0, 10));

/** Grid lines, values and dates (or indices of points). `low`, `high`: range of the values. */
function courseAxes({ x, y, left, right, top, bottom, low, high }) {
  const group = svg("g", { "aria-hidden": "true" });
  const { size, digits, unit } = view.scale;
  const step = tickStep((high - low) / size, 6);
  const most = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  for (let value = Math.ceil(low / size / step) * step; value <= high / size + step * 1e-6; value += step) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value * size), y2: y(value * size) }));
    group.append(svg("text", { class: "tick", x: left - 8, y: y(value * size) + 4, "text-anchor": "end" }, fixed(value, Math.max(most, 0) || (step < 1 ? digits : 0))));
  }
  group.append(svg("text", { class: "tick", x: left - 8, y: top - 18, "text-anchor": "end" }, unit));
  const dated = view.points.every(({ time }) => time);
  const room = dated ? 84 : 56;
  const apart = Math.max(1, tickStep(view.points.length, Math.max(1, (right - left) / room)));
  let last = -99;
  let day = "";
  for (let at = 0; at < view.points.length; at += apart) {
    const label = dated ? dateLabel(view.points[at].time, day) : String(at);
    const half = textWidth(label, SMALL) / 2;
    if (x(at) - half < last + 8 || x(at) + half > right + 8) continue;
    last = x(at) + half;
    day = view.points[at].time.slice(0, 10);
    group.append(svg("text", { class: "tick", x: x(at), y: bottom + 18, "text-anchor": "middle" }, label));
  }
  group.append(svg("line", { class: "grid", x1: left, x2: right, y1: bottom, y2: bottom }));
  group.append(svg("text", { class: "tick", x: right, y: bottom + 36, "text-anchor": "end" }, dated ? "started" : "point"));
  if (view.begin) group.append(svg("line", { class: "reset", x1: x(view.begin - 0.5), x2: x(view.begin - 0.5), y1: top, y2: bottom }), svg("text", { class: "tick", x: x(view.begin - 0.5) + 4, y: bottom - 6 }, "reset"));
  return group;
}

/** Where a change may have been; of a drift or an excursion all of it. */
function changeBand({ look, kind, low, high, at, until }, x, top, bottom) {
  const [from, to] = kind === "step" ? [low, high] : [at, until];
  return svg("rect", { class: `change-band ${look}`, x: x(from - 0.5), y: top, width: Math.max(1, x(to - 0.5) - x(from - 0.5)), height: bottom - top });
}

/** A mark at a change, with a tooltip of its sentence and the differences between the runs. */
function changeMark(change, x, top, bottom) {
  const at = x(change.at - 0.5);
  const lines = () => [change.summary, change.range, ...change.lines];
  const mark = svg("g", { class: `change-mark ${change.look}`, tabindex: 0, role: "listitem", "aria-label": lines().filter(Boolean).join("; ") });
  if (change.kind !== "spike") mark.append(svg("line", { x1: at, x2: at, y1: top, y2: bottom }));
  const sign = change.kind === "spike" ? x(change.at) : at;
  mark.append(svg("path", { class: "flag", d: change.kind === "spike" ? `M${sign - 3} ${top - 9}h6l-3 6z` : `M${sign - 6} ${top - 12}h12l-6 10z` }));
  mark.append(svg("rect", { class: "hit", x: sign - 9, y: top - 16, width: 18, height: 20 }));
  const label = change.short;
  if (label && sign + textWidth(label, SMALL) + 12 < x(view.points.length)) mark.append(svg("text", { class: "change-label", x: sign + 9, y: top - 4 }, label));
  else if (label) mark.append(svg("text", { class: "change-label", x: sign - 9, y: top - 4, "text-anchor": "end" }, label));
  return explain(mark, lines);
}

/** The point below the pointer. */
function pointer({ x, inside, left, right, top, bottom }) {
  const ring = svg("circle", { class: "ring", r: 4.5, visibility: "hidden" });
  const field = svg("rect", { class: "hit", x: left, y: top, width: right - left, height: bottom - top });
  const step = x(1) - x(0);
  field.addEventListener("pointermove", (event) => {
    const own = field.ownerSVGElement.getBoundingClientRect();
    const at = Math.min(view.points.length - 1, Math.max(0, Math.round((event.clientX - own.left - x(0)) / step)));
    const point = view.points[at];
    ring.setAttribute("cx", x(at));
    ring.setAttribute("cy", inside(point.value));
    ring.setAttribute("visibility", "visible");
    showTip([shown(point.value), ...who(point), `point ${at}`], event.clientX, event.clientY);
  });
  field.addEventListener("pointerleave", () => {
    ring.setAttribute("visibility", "hidden");
    hideTip();
  });
  return svg("g", {}, field, ring);
}

/** Draws the section that lists the differences between the runs at each lasting change. */
function causes() {
  const told = view.changes.filter(({ lines }) => lines.length);
  if (!told.length) return;
  const card = section("causes", "Other changes", "differences between the last run before the change and the first run after it; they are not proof of the cause", { nav: "Causes" });
  for (const { summary, look, lines } of told.reverse()) {
    card.append(el("h3", { class: `cause ${look}` }, summary), el("ul", { class: "limits" }, ...lines.map((line) => el("li", {}, line))));
  }
}

/** Builds the page. */
function main() {
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(() => saveCsv("history", pointRows()));
  hero();
  course();
  view.tables.forEach((table, at) => facts(table, at, table.title));
  causes();
  foot();
}

main();
