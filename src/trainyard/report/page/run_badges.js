// The runs of a comparison: the letter, the sign and the name by which each is referred to.

import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { fixed } from "./numbers.js";

/** Dashes of the lines of runs in charts: the first is solid. Colours alone would not tell eight runs apart. */
export const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "8 2 2 2 2 2"];

/** A run's letter as a badge. `at`: its number; it is read with the run's name. */
export function badge(at) {
  const { letter, name } = view.runs[at];
  return el("b", { class: `badge run-${at}`, title: name }, letter);
}

/** A run's letter in a chart, centred at (x, y). */
export function svgBadge(at, x, y) {
  return svg("text", { class: `badge-text run-${at}`, x, y: y + 3.5, "text-anchor": "middle", "aria-hidden": "true" }, view.runs[at].letter);
}

/** A run's badge and name. */
export const named = (at) => el("span", { class: "run-name" }, badge(at), el("span", {}, view.runs[at].name));

/** A change relative to `base`, in percent with a sign. */
export const relative = (change, base) => (base ? `${change < 0 ? "−" : "+"}${fixed(Math.abs((100 * change) / base), 1)} %` : "–");
