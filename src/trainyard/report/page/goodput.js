// Goodput: a job's time from its start to its end by cause, as one stacked bar.

import { tuned } from "./colours.js";
import { css, onto } from "./contrast.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { fixed, share } from "./numbers.js";
import { chartKeys, coloured } from "./plot.js";
import { SMALL, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

/** Draws the section "Goodput" from the parts of a job's time; nothing without any. */
export function goodput(parts) {
  if (!parts.length) return;
  const total = parts.reduce((sum, { seconds }) => sum + seconds, 0);
  const good = parts.find(({ cause }) => cause === "good")?.seconds ?? 0;
  const card = section("goodput", "Goodput", `${share(good, total)} of ${fixed(total, 1)} s from the start of the job to its end went into steps that count`, {
    nav: "Goodput",
    csv: () => saveCsv("goodput", goodputRows(parts)),
    png: () => saveSvg("goodput", host.firstChild),
    svg: () => saveDrawing("goodput", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  card.append(chartKeys("Causes", parts.map(({ label, colour, seconds }) => [`${label} ${share(seconds, total)}`, coloured(colour)])), host, details("The times as a table", () => goodputRows(parts)));
  redrawn(host, () => host.replaceChildren(drawGoodput(host.clientWidth, parts, total)));
}

const goodputRows = (parts) => [["cause", "seconds", "meaning"], ...parts.map(({ label, seconds, means }) => [label, fixed(seconds, 3), means])];

/** The bar as an SVG element. */
function drawGoodput(width, parts, total) {
  const chart = svg("svg", { width, height: 44, role: "list", "aria-label": "Time of the job by cause" });
  let from = 0;
  for (const { label, means, seconds, colour } of parts) {
    const wide = (seconds / total) * width;
    const fill = tuned(colour);
    const group = svg("g", { class: "spot share-of-time", tabindex: 0, role: "listitem", "aria-label": `${label}: ${fixed(seconds, 1)} s, ${share(seconds, total)}` },
      svg("rect", { class: "body", x: from, y: 4, width: Math.max(1, wide - 1), height: 34, rx: Math.min(3, wide / 3), fill: css(fill) }));
    const text = `${label} ${fixed(seconds, 1)} s`;
    if (textWidth(text, SMALL) + 12 < wide) {
      const name = svg("text", { class: "box-label", x: from + 7, y: 25 }, text);
      name.style.fill = onto(fill);
      group.append(name);
    }
    chart.append(explain(group, () => [label, `${fixed(seconds, 2)} s, ${share(seconds, total)}`, means]));
    from += wide;
  }
  return chart;
}
