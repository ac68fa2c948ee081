// The tensors of a module, in order of execution.

import { view } from "./data.js";
import { el } from "./dom.js";
import { plural, whole } from "./numbers.js";
import { ratio } from "./relative_errors.js";

const SHORT = 14;
const PARTS = ["module", "step", "phase", "label", "status", "error", "noise", "limit", "reason", "location"];

let packed = null;

/** The listed tensors by module: index of the module -> [{step, phase, label, status, error, noise, limit, reason, location}]. */
function tensorsByModule() {
  if (packed) return packed;
  packed = new Map();
  const { texts, rows } = view.tensors;
  for (const row of rows) {
    const tensor = Object.fromEntries(PARTS.map((part, at) => [part, ["phase", "label", "status", "reason", "location"].includes(part) ? texts[row[at]] : row[at]]));
    if (!packed.has(tensor.module)) packed.set(tensor.module, []);
    packed.get(tensor.module).push(tensor);
  }
  return packed;
}

/** The table of the tensors of a module; beyond some rows, a button shows the rest. */
export function moduleTensors(at) {
  const { module, tensors: total } = view.modules[at];
  const rows = tensorsByModule().get(at) ?? [];
  const name = module || "no module";
  if (!rows.length) return el("p", { class: "empty" }, `None of the ${plural(total, "tensor")} is listed.`);
  const note = rows.length < total ? `${whole(rows.length)} of ${plural(total, "tensor")}: the first different one, and those with the largest errors.` : plural(total, "tensor");
  const body = el("tbody");
  const first = rows.findIndex(({ status }) => status === "different");
  const begin = Math.max(0, Math.min(first - SHORT / 2, rows.length - SHORT));
  const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Tensors of ${name}, table` });
  const more = el("button", { type: "button", class: "more", onclick: () => show(rows) }, `Show all ${whole(rows.length)}`);
  const show = (shown) => {
    body.replaceChildren(...shown.map((row) => tensorLine(row, row === rows[first])));
    scroll.classList.toggle("tall", shown.length > SHORT);
    more.hidden = shown.length === rows.length;
  };
  show(rows.slice(begin, begin + SHORT));
  const heads = [["step", true], ["phase", false], ["tensor", false], ["error", true], ["noise", true], ["limit", true], ["of limit", true], ["status", false], ["code", false]];
  const table = el("table", {}, el("caption", { class: "hidden" }, `Tensors of ${name}`), el("thead", {}, el("tr", {}, ...heads.map(([head, number]) => el("th", { scope: "col", class: number ? "number" : null }, head)))), body);
  scroll.append(table);
  return el("div", {}, el("p", { class: "small" }, note), scroll, more);
}

/** A row of the table. */
function tensorLine({ step, phase, label, error, noise, limit, status, reason, location: code }, isFirst) {
  const fraction = error === null || !limit ? null : error / limit;
  return el("tr", { class: isFirst ? "chosen" : null },
    el("td", { class: "number" }, whole(step)), el("td", {}, phase), el("td", {}, el("span", { class: "name", title: label }, label)),
    ...[error, noise, limit, fraction].map((value) => el("td", { class: "number" }, ratio(value))),
    el("td", {}, el("span", { class: `status ${status.replace(" ", "-")}`, title: reason || null }, status)),
    el("td", {}, el("span", { class: "name", title: code }, code)));
}
