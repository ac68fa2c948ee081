// The first tensor of B that rounding does not explain, with its code, its numbers and its last correct input.

import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { setState, state } from "./state.js";

/** Draws the section of the first fault, and of those that do not follow from it; nothing without a fault. */
export function firstFault() {
  if (!view.fault) return;
  const card = section("fault", "First fault", "the first tensor, in order of execution, that rounding does not explain", {
    nav: "First fault", csv: () => saveCsv("faults", [["fact", "value"], ...view.fault.facts, ...view.further.map((text) => ["also different", text])]),
  });
  card.classList.add("fault");
  card.append(el("p", { class: "summary" }, view.fault.title));
  card.append(el("dl", { class: "fault-facts" }, ...view.fault.facts.flatMap(([name, value, isCode]) => [el("dt", {}, name), el("dd", {}, isCode ? el("code", {}, value) : value)])));
  const at = view.modules.findIndex((module) => module.is_first_fault);
  if (at >= 0) card.append(el("button", { type: "button", class: "more", onclick: () => showTensors(at) }, "Show the tensors of this module"));
  if (!view.further.length) return;
  card.append(el("h3", { class: "finding-group" }, "Further differences, which do not follow from it"), el("ul", { class: "limits" }, ...view.further.map((text) => el("li", {}, text))));
}

/** Opens the tensors of a module in the table of modules, and moves there. */
function showTensors(at) {
  const open = state.open.split(",").filter(Boolean);
  setState({ q: "", kind: "", open: open.includes(String(at)) ? state.open : [...open, at].join(",") });
  const line = /** @type {HTMLElement | null} */ (document.querySelector(`#modules [data-module="${at}"]`));
  line?.scrollIntoView({ block: "center" });
  line?.focus({ preventScroll: true });
}
