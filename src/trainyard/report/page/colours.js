// The colours of the theme that is shown.

import { contrast, mix, rgb } from "./contrast.js";
import { el } from "./dom.js";

const probe = document.body.appendChild(el("i", { hidden: true }));

export const inks = new Map();
export const darkWanted = matchMedia("(prefers-color-scheme: dark)");
darkWanted.addEventListener("change", () => inks.clear());

/** The colour of a style variable in the theme now shown, as a canvas wants it. */
export function ink(variable) {
  if (!inks.has(variable)) {
    probe.style.color = `var(${variable})`;
    inks.set(variable, getComputedStyle(probe).color);
  }
  return inks.get(variable);
}

/** The least contrast of slices of a timeline to the card. */
export const SLICE_CONTRAST = 1.9;

/** A colour with enough contrast to the card: moved towards the ink until its contrast is `least`. */
export function tuned(colour, least = 1.6) {
  const safe = /^#[0-9a-f]{6}$/i.test(colour) ? rgb(colour) : [138, 143, 152];
  const card = rgb(ink("--card"));
  const text = rgb(ink("--ink"));
  const part = [0, 0.1, 0.2, 0.3, 0.4, 0.5].find((step) => contrast(mix(safe, text, step), card) >= least) ?? 0.6;
  return mix(safe, text, part);
}
