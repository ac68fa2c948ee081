// What every page has: its heading, its header's buttons, its foot; and tables.

import { darkWanted } from "./colours.js";
import { view } from "./data.js";
import { content, el } from "./dom.js";
import { section } from "./export.js";
import { share, whole } from "./numbers.js";
import { setState, state, watch, writeHash } from "./state.js";
import { say } from "./tooltip.js";

/** The top of the page: title, subtitle, key figures, the arithmetic behind them, and warnings. */
export function hero() {
  const chips = view.chips.map((chip) => el("code", { class: "chip" }, chip));
  content.append(el("div", { class: "hero" },
    el("div", { class: "sentence" }, el("h1", {}, view.title), el("p", {}, view.subtitle, " ", ...chips.flatMap((chip) => [chip, " "]))),
    el("dl", { class: "figures" }, ...view.figures.map(figure))));
  for (const { label, value, unit, calculation } of view.figures) {
    if (calculation) content.append(el("p", { class: "worked" }, `${label} ${value} ${unit} = ${calculation}`));
  }
  if (view.warnings.length) {
    content.append(el("aside", { class: "warnings", role: "note", "aria-label": "Warnings" }, ...view.warnings.map((warning) => el("p", {}, warning))));
  }
}

/** A key figure as an element; an arrow shows the direction of its change. */
function figure({ label, value, unit, change, better, description }) {
  const arrow = /^\+/.test(change) ? "▲ " : /^[-−]/.test(change) ? "▼ " : "";
  const verdict = better === null ? "" : better ? "better" : "worse";
  const told = change ? el("span", { class: `change ${verdict}` }, " ", arrow, arrow ? change.slice(1) : change, verdict && el("span", { class: "hidden" }, ` (${verdict})`)) : null;
  return el("div", { title: description || null }, el("dt", {}, label, told), el("dd", {}, value, unit ? el("small", {}, unit) : null));
}

/** The end of the page: notes, limits and terms, then the version. */
export function foot() {
  for (const [id, title, note, lines] of [
    ["notes", "Notes", "how the numbers were obtained", view.notes],
    ["limits", "Limits", "limits of these numbers", view.limits],
    ["terms", "Terms", "all terms: docs/glossary.md", view.terms],
  ]) {
    if (lines?.length) section(id, title, note).append(el("ul", { class: "limits" }, ...lines.map((line) => el("li", {}, line))));
  }
  content.append(el("footer", {}, view.generated));
}

/** The buttons of the header; `saveAll()` gives the data of its CSV button. */
export function actions(saveAll) {
  const copy = document.getElementById("copy");
  copy.addEventListener("click", async () => {
    writeHash();
    const done = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
    copy.textContent = done ? "Copied" : "Copy it from the address bar";
    say(copy.textContent);
    setTimeout(() => (copy.textContent = "Copy link"), 1800);
  });
  document.getElementById("csv").addEventListener("click", saveAll);
  const isDark = () => (state.theme ? state.theme === "dark" : darkWanted.matches);
  const theme = document.getElementById("theme");
  const named = () => theme.setAttribute("aria-label", `Theme: ${isDark() ? "dark" : "light"}. Switch.`);
  theme.addEventListener("click", () => setState({ theme: isDark() ? "light" : "dark" }));
  watch(named);
  named();
  // Paper is white.
  let before = "";
  addEventListener("beforeprint", () => {
    before = state.theme;
    setState({ theme: "light" }, { write: false });
  });
  addEventListener("afterprint", () => setState({ theme: before }, { write: false }));
}

/** Makes an element that is no button act as one. */
export function pressed(element, act) {
  element.addEventListener("click", act);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  });
}

/** The numbers behind a chart, built when first opened. `rows()` begins with the headings. */
export function details(title, rows) {
  const box = el("details", { class: "behind" }, el("summary", {}, title));
  box.addEventListener("toggle", () => {
    if (!box.open) return;
    const [heads, ...lines] = rows();
    const table = el("table", {},
      el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, String(head))))),
      el("tbody", {}, ...lines.map((line) => el("tr", {}, ...line.map((value, at) =>
        el(at ? "td" : "th", { scope: at ? null : "row", class: typeof value === "number" ? "number" : null }, typeof value === "number" ? whole(value) : value))))));
    box.replaceChildren(box.firstChild, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, table));
  });
  return box;
}

/** A share in figures and as a bar; the largest of the table fills the bar's room. */
export function shareCell(part, most) {
  const bar = el("i", { class: "bar", "aria-hidden": "true" });
  bar.style.width = `${most ? Math.max(0, part / most) * 60 : 0}px`;
  return el("span", { class: "share" }, el("span", { class: "track" }, bar), el("span", {}, share(part, 1)));
}

/**
 * A table whose columns sort on a click. A column: {head, of(row) the value, show(row) the cell, number, first: sorted by at the beginning}; without
 * a first one the rows keep their order until then.
 * `mark(row, line)` dresses a line and runs again when the state changes; beyond `limit` rows a button shows the rest.
 */
export function sortable(title, columns, rows, { foot = null, limit, mark = null }) {
  let [sorted, down, all] = [columns.findIndex(({ first }) => first), true, false];
  const body = el("tbody");
  const heads = columns.map((column, at) => el("th", { scope: "col", class: column.number ? "number" : null }, el("button", { type: "button", onclick: () => sort(at) }, column.head)));
  const more = el("button", { type: "button", class: "more", onclick: () => { all = true; fill(); } });
  const lines = new Map();

  /** Sorts by the column `at`; in reverse if it is sorted by already. */
  function sort(at) {
    [sorted, down] = [at, at === sorted ? !down : Boolean(columns[at].number)];
    fill();
  }

  /** Shows the rows in order, at most `limit` of them unless all were asked for. */
  function fill() {
    const of = columns[sorted]?.of;
    const order = (a, b) => (typeof of(a) === "number" ? of(a) - of(b) : String(of(a)).localeCompare(String(of(b))));
    const ordered = of ? [...rows].sort((a, b) => order(a, b) * (down ? -1 : 1)) : rows;
    const shown = ordered.slice(0, all ? undefined : limit);
    heads.forEach((head, at) => (at === sorted ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    body.replaceChildren(...shown.map(lineOf));
    more.hidden = shown.length === rows.length;
    more.textContent = `Show all ${rows.length}`;
  }

  /** The table row of a row of data, created once. */
  function lineOf(row) {
    if (!lines.has(row)) {
      lines.set(row, el("tr", {}, ...columns.map((column) => {
        const value = column.show?.(row) ?? (column.number ? whole(column.of(row)) : column.of(row));
        return el("td", { class: column.number ? "number" : null }, value);
      })));
    }
    mark?.(row, lines.get(row));
    return lines.get(row);
  }

  if (mark) watch(() => lines.forEach((line, row) => mark(row, line)));
  fill();
  const table = el("table", { class: "sortable" }, el("caption", { class: "hidden" }, title), el("thead", {}, el("tr", {}, ...heads)), body, foot ? el("tfoot", {}, foot) : null);
  return el("div", {}, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}, table` }, table), more);
}
