// Where ranks differ: account by rank, as the deviation from the median rank.

import { ink } from "./colours.js";
import { css, mix, onto, rgb } from "./contrast.js";
import { inUnit, scale, view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { fixed, tickStep, time, whole } from "./numbers.js";
import { groupButtons, hasGroups, orderControl, regroups, shownHeat } from "./rank_groups.js";
import { setState, state, watch } from "./state.js";
import { fitted, SMALL, textWidth } from "./text.js";
import { explain, hideTip, say, showTip } from "./tooltip.js";

const CELL = 20;

/** Draws the heat map of accounts by rank, `view.heat`, with its legend and table. */
export function ranks() {
  const heat = view.heat;
  if (!heat || heat.ranks.length < 2) {
    const card = section("ranks", "Where ranks differ", "", { nav: "Ranks" });
    card.append(el("p", { class: "empty" }, "One rank was recorded, so there is nothing to compare it with."));
    return;
  }
  const card = section("ranks", "Where ranks differ", `${scale.unit} a step, deviation from the median rank; click a cell to jump to its lane`, {
    nav: "Ranks",
    csv: () => saveCsv("ranks", heatRows(heat)),
    png: () => saveSvg("ranks", host.firstChild),
  });
  const host = el("div", { class: "chart heat", tabindex: 0, role: "group", "aria-label": "Heat map of accounts by rank. Arrow keys move, Enter jumps to the rank's lane. The table below holds the numbers." });
  let shown = shownHeat(heat);
  const cursor = { row: 0, column: Math.max(0, shown.ranks.indexOf(heat.blamed)) };
  const legend = el("div", {}, heatLegend(shown, heatLimit(shown)));
  const draw = () => host.replaceChildren(drawHeat(shown, host.clientWidth, heatLimit(shown), cursor, document.activeElement === host));
  card.append(...(hasGroups ? [orderControl(), groupButtons()] : []), host, legend, details("Deviations as a table, ns", () => heatRows(shown)));
  host.addEventListener("keydown", (event) => moveCursor(event, shown, cursor, draw));
  host.addEventListener("focus", draw);
  host.addEventListener("blur", () => { hideTip(); draw(); });
  redrawn(host, draw);
  watch((changed) => {
    if (regroups(changed)) {
      shown = shownHeat(heat);
      cursor.column = Math.min(cursor.column, shown.ranks.length - 1);
      legend.replaceChildren(heatLegend(shown, heatLimit(shown)));
    }
    if (regroups(changed) || changed.includes("rank") || changed.includes("account")) draw();
  });
}

/** The deviations as rows for the table and the CSV: a row of headings, then one row per account, in ns. */
function heatRows(heat) {
  return [["account", ...heat.ranks.map((_, column) => columnTitle(heat, column))], ...heat.labels.map((label, row) => [label, ...heat.deviations[row]])];
}

/** The title of a column: a rank, or several. */
const columnTitle = (heat, column) => heat.titles?.[column] ?? `rank ${heat.ranks[column]}`;

/** The deviation drawn in full colour: high enough that one wild cell does not bleach the rest, and noise stays pale. */
function heatLimit(heat) {
  const sizes = heat.deviations.flat().map(Math.abs).sort((a, b) => a - b);
  const most = sizes.at(-1) ?? 0;
  const common = sizes[Math.floor(0.975 * (sizes.length - 1))] ?? 0;
  const wanted = Math.max(most <= 2 * common || sizes.length < 80 ? most : common, view.wall_ns * 0.01, 1);
  const step = tickStep(wanted, 1) / 10;
  return Math.ceil(wanted / step) * step;
}

/** The colour of a deviation in ns; `limit`: the deviation with the full colour. */
function heatColour(deviation, limit) {
  const part = Math.max(-1, Math.min(1, deviation / limit));
  return mix(rgb(ink("--heat-mid")), rgb(ink(part < 0 ? "--heat-fast" : "--heat-slow")), Math.abs(part) ** 0.8);
}

/** Sizes in px of the heat map: space for labels, width of a cell, gap, top; `x(column)`: left edge of a column. */
function heatLayout(heat, width) {
  const left = Math.min(Math.ceil(Math.max(60, ...heat.labels.map((label) => textWidth(label)))) + 14, Math.floor(width * 0.3));
  const few = heat.ranks.length <= 16;
  const right = few ? 92 : 0;
  const wide = Math.min(76, (width - left - right) / heat.ranks.length);
  return { left, wide, few, gap: wide > 6 ? 1.5 : 0, top: 34, x: (column) => left + column * wide };
}

/** The heat map as an SVG element. `cursor`: {row, column} of the keyboard's cell, drawn if `focused`. */
function drawHeat(heat, width, limit, cursor, focused) {
  const plan = heatLayout(heat, width);
  const bottom = plan.top + heat.labels.length * CELL;
  const chart = svg("svg", { width, height: bottom + 4, "aria-hidden": "true" });
  heat.labels.forEach((label, row) => {
    const y = plan.top + row * CELL;
    const chosen = state.account && heat.accounts[row] === state.account;
    chart.append(svg("text", { class: chosen ? "label chosen" : "label", x: plan.left - 12, y: y + 14, "text-anchor": "end" }, fitted(label, plan.left - 14)));
    heat.ranks.forEach((rank, column) => chart.append(...heatCell(heat, plan, row, column, limit)));
    if (plan.few) {
      const values = heat.values[row];
      chart.append(svg("text", { class: "tick", x: plan.x(heat.ranks.length) + 14, y: y + 14 }, `spread ${inUnit(Math.max(...values) - Math.min(...values))}`));
    }
  });
  chart.append(...heatNodes(heat, plan, bottom), ...heatNumbers(heat, plan));
  for (const [rank, name] of [[state.rank, "selected"], [heat.blamed, "blamed"]]) {
    const column = heat.ranks.indexOf(rank);
    if (column >= 0) chart.append(svg("rect", { class: name, x: plan.x(column) - 0.5, y: plan.top - 2, width: plan.wide + 1, height: bottom - plan.top + 4, rx: 2 }));
  }
  if (focused) chart.append(svg("rect", { class: "cursor", x: plan.x(cursor.column), y: plan.top + cursor.row * CELL, width: Math.max(4, plan.wide), height: CELL, rx: 3 }));
  return chart;
}

/** The elements of one cell: a rectangle and, if it fits, the deviation as a number. */
function heatCell(heat, plan, row, column, limit) {
  const deviation = heat.deviations[row][column];
  const fill = heatColour(deviation, limit);
  const y = plan.top + row * CELL;
  const box = svg("rect", { class: "cell", x: plan.x(column) + plan.gap / 2, y: y + 0.75, width: Math.max(0.5, plan.wide - plan.gap), height: CELL - 1.5, rx: plan.gap ? 2.5 : 0, fill: css(fill) });
  explain(box, () => heatLines(heat, row, column));
  box.addEventListener("click", () => chooseCell(heat, row, column));
  if (plan.wide < 44) return [box];
  const size = fixed(Math.abs(deviation) / scale.size, scale.digits);
  const told = /[1-9]/.test(size) ? (deviation < 0 ? "−" : "+") + size : "0";
  if (textWidth(told, SMALL) > plan.wide - 6) return [box];
  const number = svg("text", { class: "told", x: plan.x(column + 0.5), y: y + 14, "text-anchor": "middle" }, told);
  number.style.fill = onto(fill);
  return [box, number];
}

/** The lines of a cell's tooltip. */
function heatLines(heat, row, column) {
  const deviation = heat.deviations[row][column];
  const against = deviation === 0 ? "at the median" : `${time(Math.abs(deviation))} ${deviation > 0 ? "above" : "below"} the median rank`;
  return [`${columnTitle(heat, column)} · ${heat.labels[row]}`, against, `${whole(heat.values[row][column])} ns a step`, heat.nodes[column]];
}

/** Selects a cell's rank and account, and scrolls to the timeline. */
function chooseCell(heat, row, column) {
  setState({ rank: heat.ranks[column], account: heat.accounts[row] });
  document.getElementById("timeline")?.scrollIntoView({ block: "nearest" });
}

/** A bracket and a name over each run of ranks on one host. */
function heatNodes(heat, plan, bottom) {
  const marks = [];
  for (let from = 0; from < heat.nodes.length; ) {
    let to = from + 1;
    while (to < heat.nodes.length && heat.nodes[to] === heat.nodes[from]) to += 1;
    if (from > 0) marks.push(svg("line", { class: "node", x1: plan.x(from), x2: plan.x(from), y1: 2, y2: bottom }));
    marks.push(svg("text", { class: "tick", x: plan.x(from) + (from ? 4 : 1), y: 12 }, fitted(heat.nodes[from], Math.max(plan.wide * (to - from), plan.few && to === heat.nodes.length ? 160 : 0) - 6, SMALL)));
    from = to;
  }
  return marks;
}

/** Rank numbers over the columns: all if they fit, else every eighth, and always the blamed and the selected one. */
function heatNumbers(heat, plan) {
  const every = plan.wide >= 22 ? 1 : 8;
  const loud = [heat.blamed, state.rank].filter((rank) => heat.ranks.includes(rank)).map((rank) => heat.ranks.indexOf(rank));
  return heat.ranks.flatMap((rank, column) => {
    const special = loud.includes(column);
    const crowded = loud.some((other) => Math.abs(other - column) * plan.wide < 24);
    if (!special && (column % every || crowded)) return [];
    return [svg("text", { class: rank === heat.blamed ? "tick blame" : special ? "tick loud" : "tick", x: plan.x(column + 0.5), y: 28, "text-anchor": "middle" }, heat.marks?.[column] || String(rank))];
  });
}

/** The colour scale, with a note on deviations beyond it and on the rank that arrives late. */
function heatLegend(heat, limit) {
  const most = Math.max(...heat.deviations.flat().map(Math.abs));
  const beyond = most > limit * 1.02 ? `; up to ${time(most)}, beyond the scale in full colour` : "";
  return el("div", { class: "scale" }, "faster", el("span", { class: "ramp", "aria-hidden": "true" }), `slower than the median rank (±${time(limit, 2)}${beyond})`,
    heat.blamed >= 0 ? el("span", { class: "blamed-key" }, el("i", { "aria-hidden": "true" }), `rank ${heat.blamed} is the one that comes late`) : null);
}

/** Handles arrow keys and Enter: moves `cursor`, {row, column}, or selects its cell. */
function moveCursor(event, heat, cursor, draw) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (event.key === "Enter") chooseCell(heat, cursor.row, cursor.column);
  if (!step) return;
  event.preventDefault();
  cursor.row = Math.max(0, Math.min(heat.labels.length - 1, cursor.row + step[0]));
  cursor.column = Math.max(0, Math.min(heat.ranks.length - 1, cursor.column + step[1]));
  draw();
  const box = event.currentTarget.querySelector(".cursor").getBoundingClientRect();
  showTip(heatLines(heat, cursor.row, cursor.column), box.left, box.top);
  say(heatLines(heat, cursor.row, cursor.column).join(", "));
}
