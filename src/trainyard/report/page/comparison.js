// The page that compares runs, from top to bottom.

import { alignedTimelines } from "./aligned_timelines.js";
import { curves } from "./curves.js";
import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { findingChanges } from "./finding_changes.js";
import { actions, foot, hero } from "./frame.js";
import { operationTrees } from "./operation_tree.js";
import { planCheck } from "./plan_check.js";
import { named } from "./run_badges.js";
import { settings } from "./settings.js";
import { ledgerTable, sideBySide } from "./side_by_side.js";
import { initial, readHash, setState, showTheme, state } from "./state.js";

/** Draws the section with the key figures of each run; nothing if no run has any. */
function keyFigures() {
  const labels = [...new Set(view.runs.flatMap((run) => run.figures.map(({ label }) => label)))];
  if (!labels.length) return;
  const of = (run, label) => run.figures.find((figure) => figure.label === label);
  const text = (figure) => (figure ? `${figure.value} ${figure.unit}`.trim() : "");
  const card = section("figures", "Key figures", "", { csv: () => saveCsv("figures", [["figure", ...view.runs.map(({ name }) => name)], ...labels.map((label) => [label, ...view.runs.map((run) => text(of(run, label)))])]) });
  const lines = labels.map((label) => el("tr", {}, el("th", { scope: "row" }, label), ...view.runs.map((run) => {
    const figure = of(run, label);
    return el("td", { title: figure?.description || null }, text(figure), figure?.change ? el("span", { class: "aside" }, ` ${figure.change}`) : null);
  })));
  const subjects = el("tr", {}, el("th", { scope: "row" }, "run"), ...view.runs.map(({ subject, state: run }) => el("td", {}, el("span", { class: "prose" }, [subject, run && run !== "complete" ? run : ""].filter(Boolean).join(" · ")))));
  const table = el("table", { class: "settings" }, el("caption", { class: "hidden" }, "Key figures"), el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Figure"), ...view.runs.map((_, at) => el("th", { scope: "col" }, named(at))))), el("tbody", {}, subjects, ...lines));
  card.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Key figures, table" }, table));
}

/** Builds the page. */
async function main() {
  // Without host lanes, the timelines of two runs fit on a screen.
  initial.host = false;
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(() => saveCsv("ledgers", ledgerTable()));
  hero();
  settings();
  planCheck();
  sideBySide();
  const drawn = alignedTimelines();
  operationTrees();
  findingChanges();
  curves();
  keyFigures();
  foot();
  addEventListener("hashchange", () => {
    if (!/^#[a-z0-9]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
  await drawn;
  if (/^#[a-z0-9]+$/.test(location.hash)) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

main();
