// The losses, the two records, and the script that shows the difference alone.

import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { sortable } from "./frame.js";
import { plural, whole } from "./numbers.js";
import { ratio } from "./relative_errors.js";
import { differingPart } from "./text_difference.js";
import { say } from "./tooltip.js";

const MOST_LOSSES = 12;

/** Draws the section "Loss"; nothing if the records have none. */
export function losses() {
  if (!view.losses.length) return;
  const several = new Set(view.losses.map(({ rank }) => rank)).size > 1;
  const card = section("loss", "Loss", "the last scalar before the backward pass, for comparison with the errors of tensors", {
    nav: "Loss", csv: () => saveCsv("loss", [["step", "rank", "a", "b", "error", "limit", "status"], ...view.losses.map((row) => [row.step, row.rank, row.a ?? "", row.b ?? "", row.error ?? "", row.limit ?? "", row.status])]),
  });
  const number = (value) => (value === null ? "not finite" : String(Number(value.toPrecision(7))));
  const columns = [
    { head: "step", of: (row) => row.step, number: true, show: (row) => whole(row.step) },
    ...(several ? [{ head: "rank", of: (row) => row.rank, number: true, show: (row) => whole(row.rank) }] : []),
    { head: "A", of: (row) => row.a ?? Infinity, number: true, show: (row) => number(row.a) },
    { head: "B", of: (row) => row.b ?? Infinity, number: true, show: (row) => number(row.b) },
    { head: "error", of: (row) => row.error ?? -1, number: true, show: (row) => ratio(row.error) },
    { head: "limit", of: (row) => row.limit ?? -1, number: true, show: (row) => ratio(row.limit) },
    { head: "status", of: (row) => row.status },
  ];
  card.append(sortable("Loss by step", columns, view.losses, { limit: MOST_LOSSES }));
}

/** Draws the section "Records": the commands, devices and versions of both sides. Values of B that differ are marked. */
export function recordSides() {
  const rows = view.sides;
  const card = section("records", "Records", "folders, commands, devices and versions of both sides", { nav: "Records", csv: () => saveCsv("records", [["property", "a", "b"], ...rows]) });
  const cell = (value) => el("span", { class: "setting-value", title: value }, value);
  const marked = (value, base) => {
    const [start, middle, end] = differingPart(value, base);
    return el("span", { class: "setting-value", title: value }, ...[start, middle && el("mark", {}, middle), end].filter(Boolean));
  };
  const lines = rows.map(([name, a, b]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, cell(a)), el("td", {}, a === b ? cell(b) : marked(b, a))));
  const table = el("table", { class: "settings" }, el("caption", { class: "hidden" }, "Records"), el("thead", {}, el("tr", {}, ...["", "A", "B"].map((head) => el("th", { scope: "col" }, head || el("span", { class: "hidden" }, "property"))))), el("tbody", {}, ...lines));
  card.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Records, table" }, table));
}

/** Draws the section with the script that shows the difference alone; nothing without one. */
export function reproducer() {
  if (!view.reproducer) return;
  const card = section("reproducer", "Reproducer", `${plural(view.reproducer.trimEnd().split("\n").length, "line")}; the script needs only torch`, { nav: "Reproducer" });
  const copy = el("button", { type: "button", class: "more", onclick: async () => {
    const done = await navigator.clipboard.writeText(view.reproducer).then(() => true, () => false);
    copy.textContent = done ? "Copied" : "Select the text to copy it";
    say(copy.textContent);
    setTimeout(() => (copy.textContent = "Copy the script"), 1800);
  } }, "Copy the script");
  card.append(el("pre", { class: "script scroll", tabindex: 0, role: "region", "aria-label": "Script" }, el("code", {}, view.reproducer)), copy);
}
