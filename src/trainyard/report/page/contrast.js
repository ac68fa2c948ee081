// Arithmetic of colours, which are [red, green, blue] from 0 to 255.

/** [red, green, blue] of a colour: `#rrggbb` or as the browser writes computed colours. */
export function rgb(colour) {
  if (colour.startsWith("#")) return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}

/** Relative luminance of a colour, 0 to 1, as WCAG 2 defines it. */
function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

/** Contrast ratio of two colours, 1 to 21, as WCAG 2 defines it. */
export function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The colour that is the fraction `part` of the way between two colours. */
export const mix = (from, to, part) => from.map((value, at) => Math.round(value + (to[at] - value) * part));

/** A colour as CSS. */
export const css = (triple) => `rgb(${triple.join(" ")})`;

/** The colour of text on a filled area. */
export const onto = (fill) => (contrast(fill, [20, 22, 26]) >= contrast(fill, [255, 255, 255]) ? "rgb(20 22 26)" : "#fff");
