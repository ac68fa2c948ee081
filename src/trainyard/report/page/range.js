// A range of the timeline: its ledger, its longest names, and the functions that left the device idle.

import { SLICE_CONTRAST, tuned } from "./colours.js";
import { css } from "./contrast.js";
import { el } from "./dom.js";
import { saveCsv } from "./export.js";
import { shareCell, sortable } from "./frame.js";
import { idleByFunction, LAUNCHED, NO_SPAN } from "./idle_functions.js";
import { totals } from "./lanes.js";
import { plural, time, whole } from "./numbers.js";
import { setState, state } from "./state.js";

const MOST_NAMES = 12;
const MOST_FUNCTIONS = 8;

/** The rank that a range is summed over: the selected one, else the first. */
export const rankOfRange = (line) => state.rank ?? line.lanes[0].rank;

/** [account's number in the legend, ns] of a rank's time in [from, to), the largest first: its ledger, since the slices of its ledger lane tile it. */
export function ledgerOf(line, rank, from, to) {
  const lanes = line.lanes.filter((lane) => lane.kind === "ledger" && lane.rank === rank);
  const { lengths } = totals(lanes, line.names.length, from, to);
  const sums = new Map();
  lengths.forEach((ns, kind) => {
    const look = line.packed.looks[kind];
    if (ns > 0) sums.set(look, (sums.get(look) ?? 0) + ns);
  });
  return [...sums].sort((a, b) => b[1] - a[1]);
}

/** [kind, count, ns] of a rank's device slices in [from, to), the longest in all first. */
function namesOf(line, rank, from, to) {
  const lanes = line.lanes.filter((lane) => lane.kind === "device" && lane.rank === rank);
  const { counts, lengths } = totals(lanes, line.names.length, from, to);
  return [...counts.keys()].filter((kind) => counts[kind]).map((kind) => [kind, counts[kind], lengths[kind]]).sort((a, b) => b[2] - a[2]);
}

/** Fills the panel of the selected range; empties it if there is none. */
export function showRange(line, panel) {
  panel.replaceChildren();
  panel.hidden = state.left === null;
  if (state.left === null) return;
  const [from, to] = [state.left, state.right];
  const rank = rankOfRange(line);
  const ledger = ledgerOf(line, rank, from, to);
  const booked = ledger.reduce((sum, [, ns]) => sum + ns, 0);
  const names = namesOf(line, rank, from, to);
  panel.append(
    el("div", { class: "head" }, el("h3", {}, `Range of ${time(to - from, 4)} on rank ${rank}`),
      el("p", { class: "note" }, booked ? `its ledger adds up to ${whole(booked)} ns${line.packed.merged ? "; short slices of this timeline are merged, so that small parts are approximate" : ""}` : "nothing is booked in it"),
      el("div", { class: "takes" },
        el("button", { type: "button", class: "take", onclick: () => line.show(from, to) }, "Zoom"),
        el("button", { type: "button", class: "take", onclick: () => saveCsv("range", rangeRows(line, rank, from, to)) }, "CSV"),
        el("button", { type: "button", class: "take", onclick: () => setState({ left: null, right: null }) }, "Clear"))),
    el("div", { class: "columns" },
      rangeTable("By account", ["Account", "Time", "Share"], ledger.map(([look, ns]) => [accountName(line, look), time(ns), shareCell(ns / booked, ledger[0][1] / booked)])),
      rangeTable("By name", ["Name", "Count", "Time"], names.slice(0, MOST_NAMES).map(([kind, count, ns]) => [el("code", { title: line.names[kind] }, line.names[kind]), whole(count), time(ns)]),
        names.length > MOST_NAMES ? `and ${plural(names.length - MOST_NAMES, "other name")}` : "")));
  const idle = idleTable(idleByFunction(line, rank, from, to), to - from);
  if (idle) panel.append(idle);
}

/** The idle time by function as a table that can be sorted; null if there is none. `ns`: the length of the range. */
function idleTable(rows, ns) {
  if (!rows.length) return null;
  const most = Math.max(...rows.map(({ own }) => own));
  const columns = [
    { head: "Function of the host", of: ({ name }) => name, show: ({ name }) => el([LAUNCHED, NO_SPAN].includes(name) ? "span" : "code", { class: "name", title: name }, name) },
    { head: "Idle time", of: ({ own }) => own, number: true, first: true, show: ({ own }) => time(own) },
    { head: "Share of the range", of: ({ own }) => own, number: true, show: ({ own }) => shareCell(own / ns, most / ns) },
    { head: "With callees", of: ({ all }) => all, number: true, show: ({ all }) => time(all) },
  ];
  const total = rows.reduce((sum, { own }) => sum + own, 0);
  return el("div", { class: "idle" }, el("h3", {}, `Idle time by function of the host: ${time(total)}`), sortable("Idle time by function", columns, rows, { limit: MOST_FUNCTIONS }));
}

/** The idle time in the steps of the selected rank by function, as rows of a table: a row of headings, then one row each. */
export function idleRowsOfSteps(line) {
  const rank = rankOfRange(line);
  const sums = new Map();
  for (const [label, start, stop] of line.steps) {
    if (!label.startsWith("step ")) continue;
    for (const { name, own, all } of idleByFunction(line, rank, start, stop)) {
      const [before, beforeAll] = sums.get(name) ?? [0, 0];
      sums.set(name, [before + own, beforeAll + all]);
    }
  }
  return [[`function of the host, all steps of rank ${rank}`, "idle ns", "with callees, ns"], ...[...sums].sort((a, b) => b[1][0] - a[1][0]).map(([name, both]) => [name, ...both])];
}

/** A dot in the account's colour, and its label. */
export function accountName(line, look) {
  const { label, colour } = line.packed.legend[look];
  const dot = el("i", { class: "dot", "aria-hidden": "true" });
  dot.style.background = css(tuned(colour, SLICE_CONTRAST));
  return el("span", {}, dot, " ", label);
}

/** A titled table; cells after the first are numbers. */
function rangeTable(title, heads, rows, note = "") {
  return el("div", {}, el("h3", {}, title), el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((head, at) => el("th", { scope: "col", class: at ? "number" : null }, head)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((value, at) => el(at ? "td" : "th", { scope: at ? null : "row", class: at ? "number" : "cut" }, value)))))),
    note ? el("p", { class: "small" }, note) : null);
}

/** The range as rows for the CSV: its ledger, its names, then its idle time by function. */
function rangeRows(line, rank, from, to) {
  const ledger = ledgerOf(line, rank, from, to).map(([look, ns]) => ["account", line.packed.legend[look].label, "", ns]);
  const idle = idleByFunction(line, rank, from, to).map(({ name, own }) => ["idle", name, "", own]);
  return [["table", "name", "count", "ns"], ...ledger, ...namesOf(line, rank, from, to).map(([kind, count, ns]) => ["name", line.names[kind], count, ns]), ...idle];
}
