// The modules in order of execution, as a tree that can be folded and searched, each with its tensors.

import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { around, moduleTree, openAtFirst, subtree } from "./module_tree.js";
import { moduleTensors } from "./module_tensors.js";
import { plural, whole } from "./numbers.js";
import { ratio, ratioAxis, ratioScale, ratioTrack } from "./relative_errors.js";
import { setState, state, watch } from "./state.js";

const [MOST_OPEN, MOST_SIBLINGS, MOST_FOUND] = [120, 200, 100];
const COLUMNS = 6;

/** The rows of the CSV. */
export const moduleRows = () => [
  ["module", "status", "of_limit", "rho", "noise", "largest_in", "first_different", "different", "undetectable", "tensors", "first_fault"],
  ...view.modules.map((row) => [row.module, row.status, row.of_limit ?? "", row.rho ?? "", row.noise ?? "", row.worst, row.differs_from, row.different, row.undetectable, row.tensors, row.is_first_fault ? "yes" : ""]),
];

/** Draws the section "Modules". */
export function moduleTable() {
  const { modules } = view;
  const different = modules.filter(({ status }) => status === "different").length;
  const card = section("modules", "Modules in order of execution", `select a module to see its tensors; points are the largest errors relative to their limits, on a logarithmic axis; ${different ? `${whole(different)} of ${plural(modules.length, "module")} differ in some step` : plural(modules.length, "module")}`, {
    nav: "Modules", csv: () => saveCsv("modules", moduleRows()),
  });
  const axis = ratioAxis(modules.map(({ of_limit: value }) => value));
  const roots = moduleTree(modules);
  /** The module of the subtree of a closed node that has the largest of the errors that are shown. */
  const worstOf = (node) => subtree(node).reduce((worst, at) => (worst === null || (shownErrors(modules[at]).of_limit ?? -1) > (shownErrors(modules[worst]).of_limit ?? -1) ? at : worst), null);
  const unfolded = openAtFirst(roots, MOST_OPEN);
  const shownWhole = new Set();
  const body = el("tbody");

  /** Shows the rows of the tree or, if modules are searched or filtered, those that match. */
  function fill() {
    const lines = state.q || state.kind ? foundLines() : roots.flatMap((root) => treeLines(root, 0));
    body.replaceChildren(...lines);
  }

  /** The rows of a node and, if it is open, of those below it. */
  function treeLines(node, level) {
    const isOpen = unfolded.has(node);
    const lines = moduleLines({ node, level, isOpen, toggle: node.children.length ? () => toggle(node) : null });
    if (!isOpen) return lines;
    const shown = shownWhole.has(node) ? node.children : around(node.children, ({ first }) => first, MOST_SIBLINGS);
    lines.push(...shown.flatMap((child) => treeLines(child, level + 1)));
    const hidden = node.children.length - shown.length;
    if (hidden) lines.push(moreLine(`Show ${whole(hidden)} more of ${node.path}`, () => shownWhole.add(node)));
    return lines;
  }

  /** The rows of the modules that match the search text and the filter. */
  function foundLines() {
    const wanted = state.q.toLowerCase();
    const found = modules.flatMap((row, at) => ((state.kind !== "different" || shownErrors(row).status === "different") && row.module.toLowerCase().includes(wanted) ? [at] : []));
    if (!found.length) return [el("tr", {}, el("td", { colspan: COLUMNS, class: "empty" }, "No module matches."))];
    const shown = shownWhole.has("found") ? found : found.slice(0, MOST_FOUND);
    const lines = shown.flatMap((at) => moduleLines({ node: { label: modules[at].module || "(no module)", path: modules[at].module, module: at, modules: 1, children: [] }, level: 0, isOpen: true, toggle: null }));
    if (shown.length < found.length) lines.push(moreLine(`Show ${whole(found.length - shown.length)} more`, () => shownWhole.add("found")));
    return lines;
  }

  /** A row with a button that shows hidden rows; the focus goes to the first of them. */
  function moreLine(text, act) {
    const button = el("button", { type: "button", class: "more", onclick: () => {
      const before = body.children.length;
      act();
      fill();
      body.children[before - 1]?.querySelector("button")?.focus();
    } }, text);
    return el("tr", {}, el("td", { colspan: COLUMNS }, button));
  }

  /** Opens or closes a node, and keeps the focus on it. */
  function toggle(node) {
    const wasName = document.activeElement?.matches("button.name");
    if (!unfolded.delete(node)) unfolded.add(node);
    fill();
    const fold = [...body.querySelectorAll("button.fold")].find((button) => button.dataset.path === node.path);
    (wasName && fold?.parentElement.querySelector("button.name") || fold)?.focus();
  }

  /** The row of a node and, if they are open, its tensors. A closed node shows the largest error of its subtree. */
  function moduleLines({ node, level, isOpen, toggle: act }) {
    const at = isOpen ? node.module : worstOf(node);
    const row = at === null ? null : { ...modules[at], ...shownErrors(modules[at]) };
    const isShown = node.module !== null && openModules().includes(node.module);
    const fold = act
      ? el("button", { type: "button", class: "fold", "data-path": node.path, "aria-expanded": isOpen, "aria-label": `Modules in ${node.path}`, onclick: act }, isOpen ? "▾" : "▸")
      : el("span", { class: "fold" });
    if (act) fold.setAttribute("aria-expanded", String(isOpen));
    const inside = !isOpen && node.modules > 1 ? el("span", { class: "aside" }, ` ${plural(node.modules, "module")}`) : null;
    const name = el("span", { class: "operation" }, fold, moduleName(node, isShown), node.first && (isOpen ? row?.is_first_fault : true) ? el("span", { class: "first-fault" }, "first fault") : null, inside);
    name.style.paddingLeft = `${level * 14}px`;
    const line = el("tr", { class: node.module !== null && modules[node.module].is_first_fault ? "module chosen" : "module" },
      el("th", { scope: "row" }, name),
      el("td", { class: "ratio-cell" }, row ? ratioTrack(row.of_limit, axis) : ""),
      el("td", { class: "number" }, row ? ratio(row.of_limit) : ""),
      el("td", { class: "number" }, row ? (row.status === "different" && !(row.of_limit > 1) ? "exact" : ratio(row.rho)) : ""),
      el("td", {}, row?.status ? statusText(row.status) : ""),
      el("td", { class: "close" }, row?.differs_from ?? ""));
    return isShown ? [line, tensorLine(node.module)] : [line];
  }

  /** The name of a module as a button that shows its tensors. */
  function moduleName(node, isShown) {
    if (node.module === null) return el("span", { class: "name", title: node.path }, node.label);
    const button = el("button", { type: "button", class: "name", title: node.path || null, "data-module": node.module, onclick: () => {
      const open = openModules();
      setState({ open: (open.includes(node.module) ? open.filter((at) => at !== node.module) : [...open, node.module]).join(",") });
      body.querySelector(`[data-module="${node.module}"]`)?.focus();
    } }, node.label);
    button.setAttribute("aria-expanded", String(isShown));
    return button;
  }

  const tensorLine = (at) => el("tr", { class: "tensors" }, el("td", { colspan: COLUMNS }, moduleTensors(at)));

  body.addEventListener("keydown", moveFocus);
  watch((changed) => ["q", "kind", "open", "by"].some((name) => changed.includes(name)) && fill());
  fill();
  const heads = [el("th", { scope: "col" }, "Module"), el("th", { scope: "col", class: "ratio-cell" }, el("span", { class: "hidden" }, "error relative to the limit, as a point"), ratioScale(axis)),
    ...[["of limit", true], ["rho", true], ["status", false], ["differs since", false]].map(([head, number]) => el("th", { scope: "col", class: number ? "number" : null }, head))];
  const table = el("table", { class: "modules" }, el("caption", { class: "hidden" }, "Modules in order of execution"), el("thead", {}, el("tr", {}, ...heads)), body);
  card.append(filters(), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Modules, table" }, table));
}

const NO_ERRORS = { status: "", rho: null, of_limit: null };

/** The errors of a module that are shown: in the step and phase of the first fault or, without one or if these are chosen, of all steps. */
const shownErrors = (row) => (view.fault && state.by !== "all" ? row.near_fault ?? NO_ERRORS : row);

const openModules = () => state.open.split(",").filter(Boolean).map(Number).filter((at) => at < view.modules.length);

/** A status with a sign that does not need colours. */
export function statusText(status) {
  return el("span", { class: `status ${status.replace(" ", "-")}` }, status);
}

/** The search field, and the button that leaves only different modules. */
function filters() {
  const input = el("input", { type: "search", placeholder: "Search modules", "aria-label": "Search modules", spellcheck: "false", autocomplete: "off", oninput: () => setState({ q: input.value }) });
  const only = el("button", { type: "button", class: "more", onclick: () => setState({ kind: state.kind === "different" ? "" : "different" }) }, "Only different");
  const show = () => {
    if (input.value !== state.q) input.value = state.q;
    only.setAttribute("aria-pressed", String(state.kind === "different"));
  };
  watch(show);
  show();
  return el("div", { class: "controls" }, scopes(), el("div", { class: "search" }, only, input));
}

/** The choice between the errors in the step and phase of the first fault, and those of all steps; nothing without a fault. */
function scopes() {
  const group = el("div", { class: "legend orders", role: "group", "aria-label": "Errors shown" });
  if (!view.fault) return group;
  group.append(el("span", { "aria-hidden": "true" }, "Errors in"));
  for (const [by, label] of [["", `${view.fault.place} (first fault)`], ["all", "all steps"]]) {
    const key = el("button", { type: "button", onclick: () => setState({ by }) }, label);
    const show = () => key.setAttribute("aria-pressed", String((state.by === "all" ? "all" : "") === by));
    watch(show);
    show();
    group.append(key);
  }
  return group;
}

/** Arrow keys move the focus between the rows of modules; left and right fold and unfold. */
function moveFocus(event) {
  const line = event.target.closest("tr.module");
  if (!line) return;
  const lines = [...line.parentElement.querySelectorAll("tr.module")];
  const at = lines.indexOf(line);
  const fold = line.querySelector("button.fold");
  const go = (to) => (lines[to]?.querySelector("button.name") ?? lines[to]?.querySelector("button.fold"))?.focus();
  const moves = {
    ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1), Home: () => go(0), End: () => go(lines.length - 1),
    ArrowRight: () => fold?.getAttribute("aria-expanded") === "false" && fold.click(),
    ArrowLeft: () => fold?.getAttribute("aria-expanded") === "true" && fold.click(),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}
