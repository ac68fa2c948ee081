// The tooltip, and announcements to screen readers.

import { el } from "./dom.js";

const tip = document.getElementById("tip");

/** Shows lines next to a point of the window; the first is the heading. */
export function showTip(lines, x, y) {
  tip.replaceChildren(...lines.filter(Boolean).map((line, at) => el(at ? "div" : "b", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
}

export const hideTip = () => (tip.hidden = true);

/** Gives an element a tooltip on hover and on focus. */
export function explain(element, lines) {
  element.addEventListener("pointermove", (event) => showTip(lines(), event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTip);
  return explainOnFocus(element, lines);
}

/** Gives an element a tooltip on focus. */
export function explainOnFocus(element, lines) {
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    if (element.matches(":focus-visible")) showTip(lines(), box.left, box.bottom - 12);
  });
  element.addEventListener("blur", hideTip);
  return element;
}

/** Announces a text to screen readers. */
export const say = (text) => (document.getElementById("live").textContent = text);
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
