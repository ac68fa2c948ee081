// The change of the step by operation, as a tree of modules, ops and kernels that can be folded.

import { scale, signed, view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { fixed, plural } from "./numbers.js";
import { treeOf } from "./operation_nodes.js";
import { badge } from "./run_badges.js";

const MOST_OPEN = 40;

/** Draws a section for each run whose operations are compared with the first's. */
export function operationTrees() {
  view.comparisons.forEach((comparison, at) => {
    const changes = comparison?.operations;
    if (!changes) return;
    const run = view.runs[at + 1];
    const several = view.comparisons.length > 1;
    const title = several ? `Operations, ${view.runs[0].letter} to ${run.letter}` : "Operations that changed";
    const card = section(`operations${at}`, title, `the deepest nodes that explain the change, and changes of structure; ${scale.unit} a step`, {
      nav: at ? "" : "Operations", csv: () => saveCsv(`operations${several ? `_${run.letter}` : ""}`, operationRows(changes)),
    });
    if (!changes.largest.length) {
      card.append(el("p", { class: "empty" }, "No operation changed by 0.1 % of the step or more."));
      return;
    }
    if (!comparison.comparable) card.append(el("p", { class: "notice" }, "The runs did different work: most of these changes are not changes of the same operations."));
    card.append(treeTable(title, changes, at + 1, comparison.comparable));
  });
}

/** The changes for the CSV. */
function operationRows(changes) {
  const heads = ["path", "kind", "match", "path_before", "places", "before_ns", "after_ns", "change_ns", "calls_before", "calls_after"];
  const rows = changes.largest.map((row) => [row.path.join(" / "), row.kind, row.match, row.path_before.join(" / "), row.places, row.before_ns, row.after_ns, row.ns, row.calls_before, row.calls_after]);
  return [heads, ...rows, ["other operations", "", "", "", 1, changes.rest_before_ns, changes.rest_after_ns, changes.rest_ns, "", ""]];
}

/** How an operation is related to the one before, in words. */
function describeMatch({ match, joined_before: before, joined_after: after, path_before: path, places }) {
  const texts = { same: "", added: "added", removed: "removed", fused: `fused ${before} → ${after}`, split: `split ${before} → ${after}`, renamed: `renamed from ${path.at(-1)}`, moved: `moved from ${path.join(" / ")}` };
  return [texts[match] ?? match, places > 1 ? plural(places, "place") : ""].filter(Boolean).join(", ");
}

const describeCalls = ({ calls_before: before, calls_after: after }) => {
  const [old, now] = [before, after].map((calls) => fixed(calls, 1).replace(/\.0$/, ""));
  return before || after ? (old === now ? old : `${old} → ${now}`) : "";
};

/** The tree as a grid: arrow keys move between rows, and fold and unfold them. `unfolded`: whether it begins with rows below the first level. */
function treeTable(title, changes, run, unfolded) {
  const roots = treeOf(changes.largest);
  const swing = Math.max(1, ...roots.map(({ ns }) => Math.abs(ns[2])), Math.abs(changes.rest_ns));
  const rows = [];
  const add = (node, level, parent) => {
    const row = { node, level, parent, open: true, children: [] };
    row.line = operationLine(row, swing, () => toggle(row));
    rows.push(row);
    parent?.children.push(row);
    node.children.forEach((child) => add(child, level + 1, row));
  };
  roots.forEach((root) => add(root, 1, null));
  const rest = { label: "Other operations", change: null, children: [], ns: [changes.rest_before_ns, changes.rest_after_ns, changes.rest_ns] };
  add(rest, 1, null);
  if (rows.length > MOST_OPEN || !unfolded) rows.forEach((row) => (row.open = unfolded && row.level < 2));

  /** Shows the rows whose ancestors are all open. */
  function refresh() {
    for (const row of rows) {
      const hidden = (at) => at !== null && (!at.open || hidden(at.parent));
      row.line.hidden = hidden(row.parent);
      if (!row.children.length) continue;
      row.line.setAttribute("aria-expanded", String(row.open));
      row.line.querySelector(".fold").textContent = row.open ? "▾" : "▸";
    }
  }

  /** Opens or closes a row. */
  function toggle(row) {
    row.open = !row.open;
    refresh();
  }

  /** Moves the focus to a row. */
  function go(row) {
    rows.forEach(({ line }) => line.setAttribute("tabindex", "-1"));
    row.line.setAttribute("tabindex", "0");
    row.line.focus();
  }

  const heads = [["Operation", false], [view.runs[0].letter, true], [view.runs[run].letter, true], ["change", true], ["", false], ["match", false], ["calls per step", true]];
  const headCells = heads.map(([head, number], at) => el("th", { scope: "col", class: number ? "number" : null }, at === 1 ? badge(0) : at === 2 ? badge(run) : head || el("span", { class: "hidden" }, "change as a bar")));
  const body = el("tbody", {}, ...rows.map(({ line }) => line));
  const table = el("table", { class: "tree", role: "treegrid", "aria-label": title }, el("thead", {}, el("tr", {}, ...headCells)), body);
  body.addEventListener("keydown", (event) => {
    const shown = rows.filter(({ line }) => !line.hidden);
    const at = shown.findIndex(({ line }) => line === event.target.closest("tr"));
    const row = shown[at];
    const moves = {
      ArrowDown: () => shown[at + 1] && go(shown[at + 1]),
      ArrowUp: () => shown[at - 1] && go(shown[at - 1]),
      Home: () => go(shown[0]),
      End: () => go(shown.at(-1)),
      ArrowRight: () => row.children.length && (row.open ? go(row.children[0]) : toggle(row)),
      ArrowLeft: () => (row.children.length && row.open ? toggle(row) : row.parent && go(row.parent)),
      Enter: () => row.children.length && toggle(row),
    };
    if (!row || !moves[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  });
  rows[0].line.setAttribute("tabindex", "0");
  refresh();
  return el("div", { class: "scroll" }, table);
}

/** A row of the tree. */
function operationLine({ node, level }, swing, toggle) {
  const [before, after, change] = node.ns;
  const { children } = node;
  const own = node.change;
  const fold = children.length ? el("button", { type: "button", class: "fold", tabindex: "-1", "aria-hidden": "true", onclick: toggle }, "▾") : el("span", { class: "fold" });
  const name = el("span", { class: "operation" }, fold, el("span", { class: `name kind-${own?.kind ?? "group"}`, title: own ? own.path.join(" / ") : node.label }, node.label));
  name.style.paddingLeft = `${(level - 1) * 16}px`;
  const bar = el("i", { class: `swing ${change > 0 ? "up" : "down"}`, "aria-hidden": "true" });
  bar.style.width = `${Math.max(1, (Math.abs(change) / swing) * 44)}px`;
  const number = (ns) => el("td", { role: "gridcell", class: "number" }, fixed(ns / scale.size, scale.digits));
  const text = own ? describeMatch(own) : "";
  return el("tr", { role: "row", "aria-level": level, tabindex: "-1", class: own ? null : "group" },
    el("td", { role: "gridcell" }, name), number(before), number(after), el("td", { role: "gridcell", class: "number change" }, change ? signed(change) : "0"),
    el("td", { role: "gridcell", class: "swings" }, el("span", { class: "swing-track" }, bar)),
    el("td", { role: "gridcell" }, text ? el("span", { class: "match", title: text }, text) : ""), el("td", { role: "gridcell", class: "number" }, own ? describeCalls(own) : ""));
}
