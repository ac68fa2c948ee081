// Findings, and the tables: the ledger, the longest kernels, the heaviest modules.

import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { shareCell, sortable } from "./frame.js";
import { fixed, share, time, whole } from "./numbers.js";
import { setState, state } from "./state.js";

const SHORT = 12;

/**
 * Draws the list of findings. `select(label, rank)` shows the longest interval of an account in the timeline, or what a late rank did in it; `predict(change)` is a
 * button that shows the step with a change, or null.
 */
export function findings(select, predict) {
  const card = section("findings", "Findings", view.findings.length ? "Ordered by recoverable time times confidence. Prices are per step." : "", {
    nav: "Findings",
    csv: view.findings.length ? () => saveCsv("findings", findingRows()) : null,
  });
  if (!view.findings.length) card.append(el("p", { class: "empty" }, "No rule reported a finding."));
  card.append(el("ol", { class: "findings" }, ...view.findings.map((row) => finding(row, select, predict))));
}

/** A finding as a list item: severity, sentence, evidence, remedy, price and confidence. */
function finding({ rule, severity, account, cost_ns, priced, interval_ns, summary, evidence, remedy, confidence, change, beyond }, select, predict) {
  const [colour, means] = view.severities[severity];
  const dot = el("i", { "aria-hidden": "true" });
  dot.style.background = colour;
  const [priceLabel, priceMeans] = view.prices[priced];
  const interval = interval_ns ? `80 % interval ${time(interval_ns[0])} to ${time(interval_ns[1])}` : "";
  return el("li", {},
    el("span", { class: "severity", title: means }, dot, severity),
    el("div", { class: "body" },
      el("p", { class: "summary" }, summary),
      evidence ? el("p", { class: "because" }, evidence) : null,
      remedy ? el("p", { class: "remedy" }, el("b", {}, "Remedy: "), remedy.description) : null,
      el("p", { class: "small" }, el("code", {}, rule), " · ", el("code", {}, account), ...changeTexts(change, beyond), showButton(account, change, select), predict(change))),
    el("div", { class: "cost" }, el("b", {}, time(cost_ns)), el("span", { title: priceMeans }, priceLabel), el("span", {}, `${share(cost_ns, view.wall_ns)} of the step`), interval ? el("span", {}, interval) : null, el("span", {}, `${fixed(100 * confidence, 0)} % sure`)));
}

/** The change that prices a finding, and the part of it that another finding prices. */
function changeTexts(change, beyond) {
  if (!change) return [];
  const added = beyond ? [" in addition to ", el("code", {}, `--change ${beyond.text}`)] : [];
  return [" · ", el("code", {}, `--change ${change.text}`), ...added];
}

/** A button that shows the longest interval of an account in the timeline, or what a late rank did in it; null if the timeline has none. */
function showButton(account, change, select) {
  const label = view.table.find(([name]) => name === account)?.[1];
  if (!view.timeline?.legend.some((entry) => entry.label === label)) return null;
  const [, rank] = change?.text.match(/^rank:(\d+)=/) ?? [];
  const lateRank = rank === undefined ? null : Number(rank);
  return el("button", { type: "button", class: "take", onclick: () => select(label, lateRank) }, "Show in the timeline");
}

/** The findings as rows for the CSV: a row of headings, then one row each. */
function findingRows() {
  const rows = view.findings.map((row) => [row.rule, row.severity, row.account, row.cost_ns, row.priced, row.interval_ns?.[0] ?? "", row.interval_ns?.[1] ?? "", row.booked_ns, row.summary, row.evidence, row.remedy?.description ?? "", row.confidence, row.change?.text ?? "", row.beyond?.text ?? ""]);
  return [["rule", "severity", "account", "cost_ns", "priced", "low_ns", "high_ns", "booked_ns", "summary", "evidence", "remedy", "confidence", "change", "beyond"], ...rows];
}

const LEDGER_HEADS = ["account", "label", "phase", "ns", "hidden_ns", "count", "share"];
const ledgerRows = () => view.table.map((row) => [...row, view.wall_ns ? row[3] / view.wall_ns : 0]);
export const saveLedger = () => saveCsv("ledger", [LEDGER_HEADS, ...ledgerRows()]);

/** Draws the table of the mean ledger, `view.table`: (account, label, phase, ns, hidden ns, count). */
export function accounts() {
  const card = section("accounts", "Every account", "the mean ledger of a step; overlapped time is not part of the sum", { csv: saveLedger });
  if (!view.table.length) return card.append(el("p", { class: "empty" }, "The ledger has no entries."));
  const colours = barColours();
  const most = Math.max(...ledgerRows().map((row) => row[6]));
  const columns = [
    { head: "Account", of: (row) => row[1], show: (row) => accountCell(row, colours) },
    { head: "Phase", of: (row) => row[2] },
    { head: "ns", of: (row) => row[3], number: true, first: true },
    { head: "Share", of: (row) => row[6], number: true, show: (row) => shareCell(row[6], most) },
    { head: "Hidden ns", of: (row) => row[4], number: true },
    { head: "Count", of: (row) => row[5], number: true },
  ];
  const sum = (at) => whole(view.table.reduce((total, row) => total + row[at], 0));
  const foot = el("tr", {}, el("th", { scope: "row" }, view.bars.at(-1).label), el("td", {}), el("td", { class: "number" }, sum(3)), el("td", { class: "number" }, share(view.table.reduce((total, row) => total + row[3], 0), view.wall_ns)), el("td", { class: "number" }, sum(4)), el("td", {}));
  const table = sortable("Every account of the mean ledger", columns, ledgerRows(), { foot, limit: 24, mark: (row, line) => line.classList.toggle("chosen", Boolean(state.account) && row[0] === state.account) });
  return card.append(table);
}

/** Colours of accounts as the waterfall has them; an account folded into another bar takes its kind's. */
function barColours() {
  const kind = (account) => account.split("/")[0];
  const exact = new Map(view.bars.map((bar) => [bar.account, bar.colour]));
  const kinds = new Map(view.bars.map((bar) => [kind(bar.account), bar.colour]));
  return (account) => exact.get(account) ?? kinds.get(kind(account));
}

/** An account's label with its colour and its name. `colours(account)`: returns the colour. */
function accountCell(row, colours) {
  const dot = el("i", { class: "dot", "aria-hidden": "true" });
  const colour = colours(row[0]);
  if (colour) dot.style.background = css(tuned(colour));
  return el("span", {}, dot, row[1], " ", el("code", {}, row[0]));
}

/** Draws a table of kernels or modules. `find`: a click on a name searches for it in the timeline. */
export function longest(id, title, note, rows, { nav = "", find = false } = {}) {
  const card = section(id, title, note, {
    nav,
    csv: rows.length ? () => saveCsv(id, [["name", "account", "phase", "ns", "count", "share"], ...rows.map((row) => [row.name, row.account, row.phase, row.ns, row.count, row.share])]) : null,
  });
  if (!rows.length) {
    card.append(el("p", { class: "empty" }, `The record names no ${title.toLowerCase().replace("top ", "")}.`));
    return;
  }
  const most = Math.max(...rows.map((row) => row.share));
  const columns = [
    { head: "Name", of: (row) => row.name, show: (row) => nameCell(row.name, find) },
    { head: "Account", of: (row) => row.account, show: (row) => el("code", {}, row.account) },
    { head: "Phase", of: (row) => row.phase },
    { head: "ns", of: (row) => row.ns, number: true, first: true },
    { head: "Count", of: (row) => row.count, number: true },
    { head: "Share", of: (row) => row.share, number: true, show: (row) => shareCell(row.share, most) },
  ];
  card.append(sortable(title, columns, rows, { limit: SHORT }));
}

/** A name that may be two screens long: two lines of it, all of it in the tooltip; a click looks for it in the timeline. */
function nameCell(name, find) {
  if (!find) return el("span", { class: "name", title: name }, name);
  const go = () => {
    setState({ q: name, kind: "" });
    document.getElementById("timeline").scrollIntoView({ block: "start" });
  };
  return el("button", { type: "button", class: "name", title: `${name}\nClick to find it in the timeline`, onclick: go }, name);
}

/** A table of the report's own making; a cell of null is unknown. It begins in the order it came in, and its title heads a first column that has none. */
export function facts({ title, notes, columns, rows }, at, nav = "") {
  const card = section(`facts${at}`, title, [...notes, ...columns.map(({ note }) => note).filter(Boolean)].join(" "), { nav, csv: () => saveCsv(title.toLowerCase().replaceAll(/\W+/g, "_"), [columns.map((column) => column.title), ...rows.map((row) => row.map((cell) => cell ?? ""))]) });
  const close = columns.map((_, place) => rows.every((row) => String(row[place] ?? "").length <= 24));
  card.append(sortable(title, columns.map(({ title: head, digits, prose }, place) => ({
    head: head || title, number: digits !== null,
    of: (row) => row[place] ?? (digits === null ? "" : -1),
    show: (row) => (row[place] === null ? "" : digits === null ? textCell(row[place], prose, close[place]) : fixed(row[place], digits)),
  })), rows, { limit: SHORT }));
}

/** Prose is shown in full; names may be cut, and do not wrap if all names of the column are short. */
function textCell(text, prose, close) {
  return prose ? el("span", { class: "prose" }, text) : el("span", { class: close ? "name close" : "name", title: text }, text);
}
