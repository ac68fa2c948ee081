// The ledger as a waterfall: the accounts of the step, from the ideal to the measured time.

import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { inUnit, scale, signed, view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { details, pressed } from "./frame.js";
import { fixed, share, tickStep, time, whole } from "./numbers.js";
import { setState, state, watch } from "./state.js";
import { fitted, STRONG, textWidth } from "./text.js";
import { explain, explainOnFocus } from "./tooltip.js";

const HALF_BAR = 8.5;

/** Draws the section "Step-time ledger": the bars of `view.bars` with their table. */
export function waterfall() {
  const card = section("ledger", "Step-time ledger", view.bars_note || "every nanosecond of the step is in exactly one account", {
    nav: "Ledger",
    csv: () => saveCsv("waterfall", waterfallRows()),
    png: () => saveSvg("waterfall", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  card.append(host, details("The waterfall as a table", waterfallRows));
  const draw = () => {
    const focused = [...host.querySelectorAll(".bar")].indexOf(document.activeElement);
    host.replaceChildren(drawWaterfall(host.clientWidth));
    if (focused >= 0) host.querySelectorAll(".bar")[focused].focus();
  };
  redrawn(host, draw);
  watch((changed) => changed.includes("account") && draw());
}

/** The bars as rows for the table and the CSV: a row of headings, then one row per bar. */
function waterfallRows() {
  const rows = view.bars.map((bar) => [bar.label, bar.account, bar.start_ns, bar.ns, share(bar.ns, view.wall_ns), bar.evidence]);
  return [["bar", "account", "start_ns", "ns", "share", "evidence"], ...rows];
}

/** Sizes in px of the waterfall; `reach`: ns at the right edge, `per`: px per ns, `x(ns)`: position of a time. */
function waterfallLayout(width) {
  const narrow = width < 900;
  const labels = Math.max(60, ...view.bars.map((bar) => textWidth(bar.label, STRONG)));
  const left = Math.min(Math.ceil(labels) + 14, Math.floor(width * 0.34));
  const told = Math.max(...view.bars.map((bar) => (bar.evidence ? textWidth(bar.evidence) + 20 : 0)));
  const right = narrow ? width : Math.floor(width - Math.min(told, width * 0.38));
  const reach = Math.max(1, ...view.bars.map((bar) => Math.max(bar.start_ns + bar.ns, bar.whiskers?.[1] ?? 0)));
  const per = (right - left - 82) / reach;
  return { narrow, width, left, right, reach, per, x: (ns) => left + ns * per };
}

/** The waterfall as an SVG element of `width` px, a row per bar. */
function drawWaterfall(width) {
  const plan = waterfallLayout(width);
  const rows = [];
  let top = 4;
  for (const bar of view.bars) {
    const height = plan.narrow && bar.evidence ? 44 : 27;
    rows.push({ bar, middle: top + 13, height });
    top += height;
  }
  const chart = svg("svg", { width, height: top + 24, role: "group", "aria-label": "Step-time ledger, from the ideal to the measured step" });
  chart.append(axis(plan, top));
  rows.forEach((row, at) => {
    const next = rows[at + 1];
    if (next && row.bar.role !== "total") {
      const x = plan.x(row.bar.start_ns + row.bar.ns);
      chart.append(svg("line", { class: "link", x1: x, x2: x, y1: row.middle + HALF_BAR, y2: next.middle - (next.bar.role === "total" ? HALF_BAR : 0) }));
    }
  });
  for (const row of rows) chart.append(drawBar(plan, row));
  return chart;
}

/** Grid lines and labels of time below the bars. */
export function axis(plan, bottom) {
  const group = svg("g", { "aria-hidden": "true" });
  const step = tickStep(plan.reach, (plan.right - plan.left) / 75);
  const digits = Math.max(0, -Math.floor(Math.log10(step / scale.size) + 1e-9));
  for (let ns = 0; ns <= plan.reach * 1.0001; ns += step) {
    group.append(svg("line", { class: "grid", x1: plan.x(ns), x2: plan.x(ns), y1: 2, y2: bottom }));
    group.append(svg("text", { class: "tick", x: plan.x(ns), y: bottom + 17, "text-anchor": "middle" }, fixed(ns / scale.size, digits)));
  }
  group.append(svg("text", { class: "tick", x: plan.left - 12, y: bottom + 17, "text-anchor": "end" }, scale.unit));
  return group;
}

/** A bar with its label, value, whiskers and evidence; a click selects its account. */
function drawBar(plan, { bar, middle, height }) {
  const total = bar.role === "total";
  // A bar of few ns stays visible; its label tells its true length.
  const wide = Math.max(bar.ns ? 2.5 : 0, Math.abs(bar.ns) * plan.per);
  const from = plan.x(Math.min(bar.start_ns, bar.start_ns + bar.ns));
  const chosen = state.account && bar.account === state.account;
  const value = total ? `${inUnit(bar.ns)} ${scale.unit}` : bar.role === "ideal" ? inUnit(bar.ns) : signed(bar.ns);
  const told = `${bar.label}: ${whole(bar.ns)} ns, ${share(bar.ns, view.wall_ns)} of the step${bar.evidence ? `; ${bar.evidence}` : ""}`;
  const area = svg("rect", { class: "hit", x: 0, y: middle - 13, width: plan.width, height, rx: 4, tabindex: 0, role: bar.account ? "button" : "img", "aria-label": told, "aria-pressed": bar.account ? String(Boolean(chosen)) : null });
  const drawn = svg("g", { "aria-hidden": "true" });
  drawn.append(svg("text", { class: "label", x: plan.left - 12, y: middle + 4.5, "text-anchor": "end" }, fitted(bar.label, plan.left - 14)));
  drawn.append(svg("rect", { class: "body", x: from, y: middle - HALF_BAR, width: wide, height: 2 * HALF_BAR, rx: Math.min(3, wide / 2), fill: bar.role === "step" ? css(tuned(bar.colour)) : null }));
  let end = from + wide;
  if (bar.whiskers) {
    const [low, high] = bar.whiskers.map(plan.x);
    drawn.append(svg("path", { class: "whisker", d: `M${low} ${middle - 4}v8M${low} ${middle}H${high}M${high} ${middle - 4}v8` }));
    end = Math.max(end, high);
  }
  drawn.append(svg("text", { class: "value", x: end + 8, y: middle + 4.5 }, value));
  if (bar.evidence) {
    const [x, y, room] = plan.narrow ? [plan.left, middle + 21, plan.width - plan.left] : [plan.right + 16, middle + 4.5, plan.width - plan.right - 16];
    drawn.append(svg("text", { class: "evidence", x, y }, fitted(bar.evidence, room)));
  }
  const group = svg("g", { class: `bar ${bar.role}${chosen ? " chosen" : ""}` }, area, drawn);
  const lines = () => [bar.label, `${whole(bar.ns)} ns · ${share(bar.ns, view.wall_ns)} of the step`, bar.whiskers && `ends from ${time(bar.whiskers[0])} to ${time(bar.whiskers[1])}`, bar.account, bar.evidence];
  explain(group, lines);
  explainOnFocus(area, lines);
  if (bar.account) pressed(group, () => setState({ account: chosen ? "" : bar.account }));
  return group;
}
