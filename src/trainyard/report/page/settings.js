// The settings of the compared runs: those that differ, and, folded, the equal ones and those that one run lacks.

import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { plural } from "./numbers.js";
import { named } from "./run_badges.js";
import { differingPart } from "./text_difference.js";

const SHOWN_PER_KIND = 6;

/** Draws the section "Settings that differ". */
export function settings() {
  const of = (status) => view.facts.filter((row) => row.status === status);
  const differing = of("differs");
  const card = section("settings", differing.length ? "Settings that differ" : "No setting differs", "provenance, layout and recipe of the runs; values that a run does not record are left empty", {
    nav: "Settings", csv: () => saveCsv("settings", settingRows()),
  });
  if (differing.length) card.append(settingsTable("Settings that differ", differing, SHOWN_PER_KIND));
  card.append(folded(`${plural(of("equal").length, "setting")} equal`, of("equal")), folded(`${plural(of("partial").length, "setting")} recorded by one run only`, of("partial")));
}

const settingRows = () => [["kind", "setting", "status", ...view.runs.map(({ name }) => name)], ...view.facts.map((row) => [row.kind, row.key, row.status, ...row.values.map((value) => value ?? "")])];

/** A table that is built when its summary is first opened; nothing without rows. */
function folded(title, rows) {
  if (!rows.length) return "";
  const box = el("details", { class: "behind" }, el("summary", {}, title));
  box.addEventListener("toggle", () => box.childElementCount < 2 && box.append(settingsTable(title, rows, rows.length)), { once: true });
  return box;
}

/** The settings by kind with a column for each run; of each kind, at most `limit` until a button shows the rest. */
function settingsTable(title, rows, limit) {
  const kinds = [...new Set(rows.map(({ kind }) => kind))];
  const bodies = kinds.map((kind) => kindBody(kind, rows.filter((row) => row.kind === kind), limit));
  const heads = [el("th", { scope: "col" }, "Kind"), el("th", { scope: "col" }, "Setting"), ...view.runs.map((_, at) => el("th", { scope: "col" }, named(at)))];
  const table = el("table", { class: "settings" }, el("caption", { class: "hidden" }, title), el("thead", {}, el("tr", {}, ...heads)), ...bodies);
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}, table` }, table);
}

/** The rows of one kind. */
function kindBody(kind, rows, limit) {
  const body = el("tbody", {}, ...rows.slice(0, limit).map((row, at) => settingLine(row, at ? "" : kind)));
  const hidden = rows.length - limit;
  if (hidden > 0) {
    const line = el("tr", {}, el("td", {}), el("td", { colspan: view.runs.length + 1 },
      el("button", { type: "button", class: "more", onclick: () => line.replaceWith(...rows.slice(limit).map((row) => settingLine(row, ""))) }, `Show ${hidden} more of ${kind}`)));
    body.append(line);
  }
  return body;
}

/** A setting: its values, in which the characters that differ from the first run's are marked. */
function settingLine({ key, values, status }, kind) {
  const base = values[0];
  const cells = values.map((value, at) => {
    if (value === null) return el("td", { class: "unknown" }, el("span", { class: "hidden" }, "not recorded"));
    return el("td", {}, el("span", { class: "setting-value", title: value }, ...(status === "differs" && at && base !== null ? marked(value, base) : [value])));
  });
  return el("tr", {}, el("td", { class: "kind", title: kind ? view.kinds[kind] : null }, kind), el("th", { scope: "row", title: key }, key), ...cells);
}

/** The parts of a value; the part that differs from `base` is marked. */
function marked(value, base) {
  const [start, middle, end] = differingPart(value, base);
  return [start, middle && el("mark", {}, middle), end].filter(Boolean);
}
