// The data of the page, and times in the unit that suits its step.

import { fixed, scaleFor, time } from "./numbers.js";

export const view = JSON.parse(document.getElementById("data").textContent);

export const scale = scaleFor(view.wall_ns);

/** `ns` in the report's unit, without its name; a value too small for it is written in its own unit. */
export function inUnit(ns) {
  if (ns !== 0 && Math.abs(ns) < 0.5 * scale.size * 10 ** -scale.digits) return time(ns);
  return fixed(ns / scale.size, scale.digits);
}

/** `inUnit` with a sign. */
export function signed(ns) {
  return (ns < 0 ? "−" : "+") + inUnit(Math.abs(ns));
}
