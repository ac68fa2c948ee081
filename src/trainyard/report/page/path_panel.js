// The time of the critical path by account, next to the mean ledger.

import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv } from "./export.js";
import { shareCell, sortable } from "./frame.js";
import { totals } from "./lanes.js";
import { plural, share, time } from "./numbers.js";
import { pathRows } from "./path_segments.js";
import { accountName } from "./range.js";
import { state } from "./state.js";

const MOST_ACCOUNTS = 12;
const MOST_RANKS = 6;

/** Fills the panel of the path; empties it while the path is not shown. */
export function showPath(line, panel) {
  panel.replaceChildren();
  const { path } = line.packed;
  panel.hidden = !state.path || !line.path;
  if (panel.hidden) return;
  const hasRange = state.left !== null;
  const times = totals([line.path], path.shares.length, hasRange ? state.left : -Infinity, hasRange ? state.right : Infinity).lengths;
  const rows = pathRows(path, view.table, times);
  const step = path.total_ns / path.steps;
  const ranks = path.ranks.slice(0, MOST_RANKS).map(([rank, ns]) => `rank ${rank} (${share(ns, path.total_ns)})`).join(", ");
  const more = path.ranks.length > MOST_RANKS ? ` and ${plural(path.ranks.length - MOST_RANKS, "other rank")}` : "";
  const notes = [
    "The chain of dependent ops that determines when the steps end: only ops on it can shorten them.",
    path.one_clock && line.lanes.some(({ rank }) => rank !== line.lanes[0].rank) && `It runs on ${ranks}${more}.`,
    !path.one_clock && `The clocks of the ranks are not aligned: this is the path of rank ${path.ranks[0]?.[0]}, which has the longest steps.`,
    path.merged && "Short segments are merged in the drawing and in the column of the range.",
  ];
  const csv = () => saveCsv("critical_path", [["account", "label", "resources", "path_ns_per_step", "ledger_ns_per_step", "range_ns"], ...rows.map((row) => [row.account, row.label, row.resources.join(" "), row.path, row.ledger, hasRange ? row.range : ""])]);
  const most = Math.max(...rows.map((row) => row.path));
  const columns = [
    { head: "Account", of: (row) => row.label, show: (row) => pathAccount(line, row) },
    { head: "Resource", of: (row) => row.resources.join(", ") },
    { head: "On the path, per step", of: (row) => row.path, number: true, first: true, show: (row) => time(row.path) },
    { head: "Share of the step", of: (row) => row.path, number: true, show: (row) => shareCell(row.path / step, most / step) },
    { head: "In the mean ledger", of: (row) => row.ledger, number: true, show: (row) => time(row.ledger) },
    ...(hasRange ? [{ head: "On the path, in the range", of: (row) => row.range, number: true, show: (row) => time(row.range) }] : []),
  ];
  panel.append(
    el("div", { class: "head" }, el("h3", {}, `Critical path of ${plural(path.steps, "step")}, ${time(step, 4)} each`),
      el("p", { class: "note" }, notes.filter(Boolean).join(" ")),
      el("div", { class: "takes" }, el("button", { type: "button", class: "take", "aria-label": "Critical path: save as CSV", onclick: csv }, "CSV"))),
    sortable("Critical path by account", columns, rows, { limit: MOST_ACCOUNTS }));
}

/** The label of an account, with a dot in its colour if the timeline has it. */
function pathAccount(line, { label }) {
  const look = line.packed.legend.findIndex((entry) => entry.label === label);
  return look < 0 ? label : accountName(line, look);
}
