// Text that must fit.

const measurer = document.createElement("canvas").getContext("2d");
const FAMILY = getComputedStyle(document.body).fontFamily;
export const [LABEL, STRONG, SMALL] = [`12.5px ${FAMILY}`, `600 12.5px ${FAMILY}`, `11px ${FAMILY}`];

/** Width in px of a text in a font. */
export function textWidth(text, font = LABEL) {
  measurer.font = font;
  return measurer.measureText(text).width;
}

/** The text, cut at its end with an ellipsis to fit into `room` px; empty if nothing fits. */
export function fitted(text, room, font) {
  if (textWidth(text, font) <= room) return text;
  let keep = Math.floor((text.length * room) / textWidth(text, font));
  while (keep > 0 && textWidth(text.slice(0, keep) + "…", font) > room) keep -= 1;
  return keep > 0 ? text.slice(0, keep).trimEnd() + "…" : "";
}
