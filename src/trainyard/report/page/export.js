// Every chart can be saved: its data as CSV, itself as PNG and SVG.

import { darkWanted, ink } from "./colours.js";
import { content, el } from "./dom.js";
import { watch } from "./state.js";

/** Spreadsheets run cells that begin with = + - @ as formulas, and names in traces are hostile: an apostrophe disarms them. */
function cell(value) {
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function saveCsv(name, rows) {
  const text = rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
  save(`${name}.csv`, new Blob([text], { type: "text/csv" }));
}

export function save(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: `trainyard-${name}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "paint-order", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

/** A chart as the text of an SVG file, its style written into it because an image has no style sheet. */
function standalone(chart) {
  const copy = chart.cloneNode(true);
  const drawn = [chart, ...chart.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((twin, at) => {
    const style = getComputedStyle(drawn[at]);
    for (const property of DRAWN) twin.setAttribute(property, style.getPropertyValue(property));
  });
  // XML has no place for control characters, not even escaped.
  const text = new XMLSerializer().serializeToString(copy).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  return text.toWellFormed?.() ?? text;
}

/** Saves a chart as an SVG file. */
export const saveDrawing = (name, chart) => save(`${name}.svg`, new Blob([standalone(chart)], { type: "image/svg+xml" }));

/** Saves a chart as PNG at twice its size. */
export function saveSvg(name, chart) {
  const { width, height } = chart.getBoundingClientRect();
  const image = new Image(width, height);
  image.onload = () => {
    const canvas = el("canvas", { width: Math.ceil(width * 2 + 48), height: Math.ceil(height * 2 + 48) });
    const pen = canvas.getContext("2d");
    pen.fillStyle = ink("--card");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 24, 24, width * 2, height * 2);
    canvas.toBlob((blob) => save(`${name}.png`, blob));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(chart))}`;
}

/** A card of the report. `csv()`, `png()` and `svg()` save it; the section is in the header's list when `nav` names it. */
export function section(id, title, note, { nav = "", csv = null, png = null, svg = null } = {}) {
  const takes = [["CSV", csv], ["PNG", png], ["SVG", svg]].filter(([, take]) => take).map(([name, take]) =>
    el("button", { type: "button", class: "take", "aria-label": `${title}: save as ${name}`, onclick: take }, name));
  const head = el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title), el("p", { class: "note" }, note), el("div", { class: "takes" }, ...takes));
  const card = el("section", { id, class: "card", "aria-labelledby": `${id}-title`, tabindex: "-1" }, head);
  content.append(card);
  if (nav) {
    const go = (event) => {
      event.preventDefault();
      card.scrollIntoView({ block: "start" });
      card.focus({ preventScroll: true });
    };
    document.getElementById("nav").append(el("a", { href: `#${id}`, onclick: go }, nav));
  }
  return card;
}

/** Runs `draw` now, and again when the element's width or the theme changes. A page without a width, in a tab not yet shown, waits. */
export function redrawn(element, draw) {
  let width = 0;
  const again = () => width > 0 && draw();
  const measure = () => {
    if (Math.round(element.clientWidth) === width) return;
    width = Math.round(element.clientWidth);
    again();
  };
  new ResizeObserver(measure).observe(element);
  watch((changed) => changed.includes("theme") && again());
  darkWanted.addEventListener("change", again);
  measure();
}
