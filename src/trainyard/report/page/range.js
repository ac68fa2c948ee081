// A range of the timeline: its ledger and its longest names.

import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { el } from "./dom.js";
import { saveCsv } from "./export.js";
import { shareCell } from "./frame.js";
import { totals } from "./lanes.js";
import { plural, time, whole } from "./numbers.js";
import { setState, state } from "./state.js";

const MOST_NAMES = 12;

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
}

/** A dot in the account's colour, and its label. */
function accountName(line, look) {
  const { label, colour } = line.packed.legend[look];
  const dot = el("i", { class: "dot", "aria-hidden": "true" });
  dot.style.background = css(tuned(colour, 1.9));
  return el("span", {}, dot, " ", label);
}

/** A titled table; cells after the first are numbers. */
function rangeTable(title, heads, rows, note = "") {
  return el("div", {}, el("h3", {}, title), el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((head, at) => el("th", { scope: "col", class: at ? "number" : null }, head)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((value, at) => el(at ? "td" : "th", { scope: at ? null : "row", class: at ? "number" : "cut" }, value)))))),
    note ? el("p", { class: "small" }, note) : null);
}

/** The range as rows for the CSV: first its ledger, then its names. */
function rangeRows(line, rank, from, to) {
  const ledger = ledgerOf(line, rank, from, to).map(([look, ns]) => ["account", line.packed.legend[look].label, "", ns]);
  return [["table", "name", "count", "ns"], ...ledger, ...namesOf(line, rank, from, to).map(([kind, count, ns]) => ["name", line.names[kind], count, ns])];
}
