// The ledgers of several runs as waterfalls on one scale, with the change of each account and its verdict.

import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { inUnit, scale, signed, view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, saveDrawing, section } from "./export.js";
import { details, pressed } from "./frame.js";
import { fixed, share, tickStep, time, whole } from "./numbers.js";
import { named, relative, svgBadge } from "./run_badges.js";
import { setState, state, watch } from "./state.js";
import { fitted, STRONG, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

const RUN_LINE = 13;
const RUN_BAR = 10;
const HEADING = 20;

/** Draws the section "Ledgers side by side". */
export function sideBySide() {
  const profiled = view.runs.some(({ kind }) => kind === "run") ? "of profiled steps; " : "";
  const card = section("ledgers", "Ledgers side by side", `${profiled}one scale; each waterfall adds up to its step, and the changes to the change of the step`, {
    nav: "Ledgers", csv: () => saveCsv("ledgers", ledgerTable()), png: () => saveSvg("ledgers", host.firstChild), svg: () => saveDrawing("ledgers", host.firstChild),
  });
  if (!view.rows.length) return card.append(el("p", { class: "empty" }, "No run has a ledger with time in it."));
  const keys = el("ul", { class: "chart-keys", "aria-label": "Runs" }, ...view.runs.map((run, at) => el("li", {}, named(at), el("span", {}, run.no_ledger ? "no ledger" : `${inUnit(run.wall_ns)} ${scale.unit}`))));
  const host = el("div", { class: "chart" });
  card.append(keys, host, details("The ledgers as a table", ledgerTable));
  const draw = () => {
    const focused = [...host.querySelectorAll(".hit")].indexOf(document.activeElement);
    host.replaceChildren(drawLedgers(host.clientWidth));
    if (focused >= 0) host.querySelectorAll(".hit")[focused].focus();
  };
  redrawn(host, draw);
  return watch((changed) => changed.includes("kind") && draw());
}

/** The rows for the table and the CSV: ns of each run, then ns, bounds and verdict of each change. */
export function ledgerTable() {
  const others = view.runs.slice(1);
  const heads = ["account", "label", ...view.runs.map(({ letter }) => `${letter} ns`), ...others.flatMap(({ letter }) => [`${letter} change ns`, `${letter} low ns`, `${letter} high ns`, `${letter} verdict`])];
  const lines = [...view.rows, totalRow()].map((row) => [
    row.account, row.label, ...row.ns.map((ns) => ns ?? ""),
    ...row.changes.flatMap((change) => (change ? [change.ns, change.low_ns ?? "", change.high_ns ?? "", change.verdict && view.verdicts[change.verdict][0]] : ["", "", "", ""])),
  ]);
  return [heads, ...lines];
}

/** The step as a row below the accounts. */
function totalRow() {
  const ns = view.runs.map((run) => (run.no_ledger ? null : run.wall_ns));
  const changes = view.comparisons.map((comparison) => comparison && { ns: comparison.wall_change_ns, low_ns: null, high_ns: null, verdict: "" });
  return { label: "Step", account: "", colour: "", evidence: "", total: true, ns, start_ns: ns.map((value) => (value === null ? null : 0)), changes };
}

/** Sizes in px: labels, badges, bars, then the column of changes with a bar each (`delta`) unless narrow, their number and verdict. */
function ledgerLayout(width) {
  const labels = Math.max(60, ...view.rows.map((row) => textWidth(row.label, STRONG)));
  const narrow = width < 980;
  const left = Math.min(Math.ceil(labels) + 14, Math.floor(width * (narrow ? 0.3 : 0.2))) + 20;
  const verdicts = width - 82;
  const numbers = verdicts - 14;
  const delta = narrow ? null : { left: numbers - 240, right: numbers - 84 };
  const right = (delta ? delta.left : numbers - 76) - 18;
  const reach = Math.max(1, ...view.runs.map(({ wall_ns: ns }) => ns), ...view.plan_checks.map((check) => check?.high_ns ?? 0));
  const per = (right - left - 62) / reach;
  const swing = Math.max(1, ...view.rows.flatMap((row) => row.changes.map((change) => Math.abs(change?.ns ?? 0))));
  return { width, narrow, left, right, delta, numbers, verdicts, reach, per, swing, x: (ns) => left + ns * per };
}

/** The chart as an SVG element of `width` px: a row for each account, in it a line for each run. */
function drawLedgers(width) {
  const plan = ledgerLayout(width);
  const rows = [];
  let top = HEADING;
  for (const row of [...view.rows, totalRow()]) {
    if (row.total) top += 5;
    rows.push({ row, top });
    top += view.runs.length * RUN_LINE + 10;
  }
  const chart = svg("svg", { width, height: top + 24, role: "group", "aria-label": "Ledgers side by side" });
  chart.append(ledgerAxis(plan, top), ledgerHeads(plan));
  rows.forEach(({ row, top: from }, at) => {
    const next = rows[at + 1];
    if (!next) return;
    row.ns.forEach((ns, run) => {
      if (ns === null) return;
      const x = plan.x(row.start_ns[run] + ns);
      chart.append(svg("line", { class: "link", x1: x, x2: x, y1: from + run * RUN_LINE + RUN_BAR + 4, y2: next.top + run * RUN_LINE + 4 }));
    });
  });
  for (const { row, top: from } of rows) chart.append(...drawRow(plan, row, from));
  return chart;
}

/** Grid lines and labels of time below the bars. */
function ledgerAxis(plan, bottom) {
  const group = svg("g", { "aria-hidden": "true" });
  const step = tickStep(plan.reach, (plan.right - plan.left) / 75);
  const digits = Math.max(0, -Math.floor(Math.log10(step / scale.size) + 1e-9));
  for (let ns = 0; ns <= plan.reach * 1.0001; ns += step) {
    group.append(svg("line", { class: "grid", x1: plan.x(ns), x2: plan.x(ns), y1: HEADING - 4, y2: bottom }));
    group.append(svg("text", { class: "tick", x: plan.x(ns), y: bottom + 17, "text-anchor": "middle" }, fixed(ns / scale.size, digits)));
  }
  group.append(svg("text", { class: "tick", x: plan.left - 26, y: bottom + 17, "text-anchor": "end" }, scale.unit));
  if (plan.delta) {
    const middle = (plan.delta.left + plan.delta.right) / 2;
    group.append(svg("line", { class: "zero", x1: middle, x2: middle, y1: HEADING - 4, y2: bottom }));
  }
  return group;
}

/** The headings of the columns of changes. */
function ledgerHeads(plan) {
  const change = view.runs.length > 2 ? `change from ${view.runs[0].letter}` : "change";
  const judged = view.rows.some((row) => row.changes.some((made) => made?.verdict));
  return svg("g", { "aria-hidden": "true" },
    svg("text", { class: "tick", x: plan.numbers, y: 10, "text-anchor": "end" }, `${change}, ${scale.unit}`),
    judged ? svg("text", { class: "tick", x: plan.verdicts, y: 10 }, "verdict") : null);
}

/** A row as [its drawing, the field in front of it]: its label, the bar of each run, and the changes. A click dims the other accounts in the timelines. */
function drawRow(plan, row, top) {
  const tall = view.runs.length * RUN_LINE;
  const chosen = Boolean(state.kind) && state.kind === row.label;
  const group = svg("g", { class: `row${row.total ? " total" : ""}${chosen ? " chosen" : ""}`, "aria-hidden": "true" });
  group.append(svg("rect", { class: "ground", x: 0, y: top - 2, width: plan.width, height: tall + 8, rx: 4 }));
  group.append(svg("text", { class: "label", x: plan.left - 26, y: top + tall / 2 + 6, "text-anchor": "end" }, fitted(row.label, plan.left - 30)));
  row.ns.forEach((ns, run) => {
    const middle = top + run * RUN_LINE + RUN_LINE / 2 + 1;
    group.append(svgBadge(run, plan.left - 13, middle));
    if (ns === null) {
      group.append(svg("text", { class: "tick", x: plan.left + 4, y: middle + 4 }, "no ledger"));
      return;
    }
    group.append(...runBar(plan, row, run, middle));
    if (run) group.append(...changeMarks(row.total ? { ...plan, delta: null } : plan, row.changes[run - 1], middle));
  });
  // The field in front of the row has all of its text as a label.
  const field = svg("rect", { class: "hit", x: 0, y: top - 2, width: plan.width, height: tall + 8, rx: 4, tabindex: 0, role: row.account ? "button" : "img", "aria-label": rowText(row), "aria-pressed": row.account ? String(chosen) : null });
  explain(field, () => rowLines(row));
  if (row.account) pressed(field, () => setState({ kind: chosen ? "" : row.label }));
  return [group, field];
}

/** The bar of a run with its time. The first run's is pale; a plan's step has its interval as whiskers. */
function runBar(plan, row, run, middle) {
  const ns = row.ns[run];
  const wide = Math.max(ns ? 2 : 0, ns * plan.per);
  const from = plan.x(row.start_ns[run]);
  const marks = [svg("rect", { class: `body${run ? "" : " base"}`, x: from, y: middle - RUN_BAR / 2, width: wide, height: RUN_BAR, rx: Math.min(2.5, wide / 2), fill: row.total ? null : css(tuned(row.colour)) })];
  let end = from + wide;
  const check = row.total && view.runs[run].kind === "plan" && view.plan_checks.find(Boolean);
  if (check) {
    const [low, high] = [plan.x(check.low_ns), plan.x(check.high_ns)];
    marks.push(svg("path", { class: "whisker", d: `M${low} ${middle - 4}v8M${low} ${middle}H${high}M${high} ${middle - 4}v8` }));
    end = Math.max(end, high);
  }
  marks.push(svg("text", { class: "value", x: end + 6, y: middle + 4 }, row.total ? `${inUnit(ns)} ${scale.unit}` : ns ? inUnit(ns) : "0"));
  return marks;
}

/** The change of a run as a bar with the range over steps unless there is no place for it, as a number, and its verdict. */
function changeMarks(plan, change, middle) {
  if (!change) return [];
  const tone = change.verdict === "worse" || change.verdict === "better" ? change.verdict : "unsure";
  const marks = [svg("text", { class: `change ${tone}`, x: plan.numbers, y: middle + 4, "text-anchor": "end" }, change.ns ? signed(change.ns) : "0")];
  if (change.verdict) marks.push(svg("text", { class: `verdict ${tone}`, x: plan.verdicts, y: middle + 4 }, view.verdicts[change.verdict][0]));
  if (!plan.delta) return marks;
  const half = (plan.delta.right - plan.delta.left) / 2;
  const zero = plan.delta.left + half;
  const at = (ns) => zero + Math.max(-half, Math.min(half, (ns / plan.swing) * half * 0.94));
  const [low, high] = [Math.min(zero, at(change.ns)), Math.max(zero, at(change.ns))];
  if (change.ns) marks.push(svg("rect", { class: `delta ${tone}`, x: low, y: middle - 3.5, width: Math.max(1.5, high - low), height: 7, rx: 1.5 }));
  if (change.low_ns !== null && change.high_ns !== null) marks.push(svg("path", { class: "whisker", d: `M${at(change.low_ns)} ${middle}H${at(change.high_ns)}M${at(change.low_ns)} ${middle - 2.5}v5M${at(change.high_ns)} ${middle - 2.5}v5` }));
  return marks;
}

/** The lines of a row's tooltip. */
function rowLines(row) {
  const times = view.runs.map(({ letter, wall_ns: wall }, run) => (row.ns[run] === null ? `${letter}: no ledger` : `${letter}: ${time(row.ns[run])} · ${whole(row.ns[run])} ns · ${share(row.ns[run], wall)} of the step`));
  const changes = row.changes.flatMap((change, at) => (change ? [changeLine(change, view.runs[at + 1].letter, row.ns[0])] : []));
  return [row.label, ...times, ...changes, row.account || row.evidence];
}

/** A change in words: `B: +3.2 ms (+4.1 %), from 1.2 ms to 5.0 ms over steps: worse`. */
function changeLine({ ns, low_ns: low, high_ns: high, verdict }, letter, base) {
  const range = low === null || high === null ? "" : `, from ${time(low)} to ${time(high)} over steps`;
  return `${letter}: ${ns < 0 ? "−" : "+"}${time(Math.abs(ns))} (${relative(ns, base)})${range}${verdict ? `: ${view.verdicts[verdict][0]}` : ""}`;
}

const rowText = (row) => rowLines(row).filter(Boolean).join("; ");
