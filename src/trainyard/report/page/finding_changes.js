// Findings that appeared, went away or stayed between the first run and another one.

import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { time } from "./numbers.js";
import { badge } from "./run_badges.js";

const GROUPS = [["appeared", "Appeared"], ["gone", "Went away"], ["both", "In both"]];

/** Draws a section for each run that has findings, or of whose findings the first run has some. */
export function findingChanges() {
  view.findings.forEach((changes, at) => {
    const run = view.runs[at + 1];
    const several = view.findings.length > 1;
    const unpaired = changes.filter(({ status }) => status === "unpaired");
    // The findings of the first run alone would be the same for each run that cannot have any.
    if (several && unpaired.length && unpaired.every(({ after }) => !after)) return;
    const counts = GROUPS.map(([status, title]) => [changes.filter((change) => change.status === status).length, title.toLowerCase()]).filter(([count]) => count);
    const note = unpaired.length ? "the other one is a plan or was not profiled: it has none to compare with" : counts.map(([count, title]) => `${count} ${title}`).join(", ");
    const title = unpaired.length ? `Findings of ${(unpaired[0].after ? run : view.runs[0]).letter}` : several ? `Findings, ${view.runs[0].letter} to ${run.letter}` : "Findings that changed";
    const card = section(`findings${at}`, title, note, {
      nav: at ? "" : "Findings", csv: changes.length ? () => saveCsv(`findings${several ? `_${run.letter}` : ""}`, findingRows(changes)) : null,
    });
    if (!changes.length) card.append(el("p", { class: "empty" }, "No rule reported a finding for either run."));
    if (unpaired.length) card.append(findingList(unpaired, at + 1));
    for (const [status, heading] of GROUPS) {
      const group = changes.filter((change) => change.status === status);
      if (group.length) card.append(el("h3", { class: "finding-group" }, heading), findingList(group, at + 1));
    }
  });
}

const findingList = (changes, run) => el("ol", { class: "findings" }, ...changes.map((change) => findingItem(change, run)));

/** The changes for the CSV. */
function findingRows(changes) {
  const rows = changes.map(({ status, before, after, cost_change_ns: change }) => {
    const finding = after ?? before;
    return [status, finding.rule, finding.account, finding.severity, before?.cost_ns ?? "", after?.cost_ns ?? "", change, finding.summary, finding.evidence, finding.remedy?.description ?? ""];
  });
  return [["status", "rule", "account", "severity", "before_cost_ns", "after_cost_ns", "change_ns", "summary", "evidence", "remedy"], ...rows];
}

/** A finding with its price in each run that has it. */
function findingItem({ status, before, after, cost_change_ns: change }, run) {
  const finding = after ?? before;
  const [colour, means] = view.severities[finding.severity];
  const dot = el("i", { "aria-hidden": "true" });
  dot.style.background = colour;
  const price = (item, at) => item && el("span", { title: view.prices[item.priced][1] }, badge(at), ` ${time(item.cost_ns)}`);
  return el("li", {},
    el("span", { class: "severity", title: means }, dot, finding.severity),
    el("div", { class: "body" },
      el("p", { class: "summary" }, finding.summary),
      finding.evidence ? el("p", { class: "because" }, finding.evidence) : null,
      finding.remedy && after ? el("p", { class: "remedy" }, el("b", {}, "Remedy: "), finding.remedy.description) : null,
      el("p", { class: "small" }, el("code", {}, finding.rule), " · ", el("code", {}, finding.account))),
    el("div", { class: "cost" }, status === "unpaired" ? null : el("b", {}, `${change < 0 ? "−" : "+"}${time(Math.abs(change))}`), price(before, 0), price(after, run)));
}
