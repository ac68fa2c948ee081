// The distribution of errors relative to their limits, for each phase.

import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { plural, whole } from "./numbers.js";
import { chartKeys, dressed, linear } from "./plot.js";
import { powerLabel, ratio } from "./relative_errors.js";
import { SMALL, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

const [LEFT, PHASE_HEIGHT, BAR_HEIGHT, EXACT_ROOM] = [84, 96, 62, 64];

/** Draws the section "Errors of all tensors"; only the counts without any error above 0. */
export function errorHistogram() {
  const { edges, phases } = view.histogram;
  const judged = phases.reduce((sum, { counts, exact }) => sum + exact + counts.reduce((all, count) => all + count, 0), 0);
  const card = section("histogram", "Errors of all tensors", `error divided by the limit of ${plural(judged, "tensor")} that were judged by value`, {
    nav: "Errors", csv: () => saveCsv("errors", histogramRows()), png: edges.length ? () => saveSvg("errors", host.firstChild) : null, svg: edges.length ? () => saveDrawing("errors", host.firstChild) : null,
  });
  const host = el("div", { class: "chart" });
  if (edges.length) {
    card.append(chartKeys("Bars", [["within the limit", dressed("key-within")], ["beyond the limit", dressed("key-beyond")]]), host);
    redrawn(host, () => host.replaceChildren(drawHistogram(host.clientWidth)));
  }
  const reasons = Object.entries(view.undetectable_reasons).map(([reason, count]) => `${plural(count, "tensor")}: ${reason}`);
  const compensated = phases.reduce((sum, phase) => sum + phase.compensated, 0);
  if (reasons.length) card.append(el("h3", { class: "finding-group" }, "Undetectable, which does not mean equal"), el("ul", { class: "limits" }, ...reasons.map((reason) => el("li", {}, reason))));
  if (compensated) card.append(el("p", { class: "small" }, `${plural(compensated, "tensor")} with other intermediate results in modules whose outputs agree are not drawn.`));
  card.append(details("The histogram as a table", histogramRows));
}

/** A row for each bin of each phase, and for tensors without errors. */
function histogramRows() {
  const { edges, phases } = view.histogram;
  const rows = phases.flatMap(({ phase, counts, exact, compensated, undetectable }) => [
    [phase, "no error", exact], ...counts.map((count, at) => [phase, binName(edges, at), count]), [phase, "compensated", compensated], [phase, "undetectable", undetectable]]);
  return [["phase", "error / limit", "tensors"], ...rows.filter(([, , count]) => count)];
}

const binName = (edges, at) => `${ratio(10 ** edges[at])} to ${ratio(10 ** edges[at + 1])}`;

/** The bars of each phase, one above the other, on a common axis. */
function drawHistogram(width) {
  const { edges, phases } = view.histogram;
  const [low, high] = [Math.min(-1, Math.floor(edges[0])), Math.max(1, Math.ceil(edges.at(-1)))];
  const x = linear(low, high, LEFT + EXACT_ROOM, width - 16);
  const height = phases.length * PHASE_HEIGHT + 44;
  const chart = svg("svg", { width, height, role: "list", "aria-label": "Tensors by error relative to the limit, for each phase" });
  const bottom = phases.length * PHASE_HEIGHT;
  const grid = svg("g", { "aria-hidden": "true" });
  let last = -99;
  for (let power = low; power <= high; power += 1) {
    const [label, at] = [power ? powerLabel(power) : "1, the limit", x(power)];
    const half = textWidth(label, SMALL) / 2;
    grid.append(svg("line", { class: power ? "grid" : "limit", x1: at, x2: at, y1: 6, y2: bottom }));
    if (power && (at - half < last + 8 || Math.abs(at - x(0)) < half + 40)) continue;
    last = at + half;
    grid.append(svg("text", { class: power ? "tick" : "tick limit-label", x: at, y: bottom + 17, "text-anchor": "middle" }, label));
  }
  grid.append(svg("text", { class: "tick", x: LEFT + 20, y: bottom + 17, "text-anchor": "middle" }, "no error"), svg("text", { class: "tick", x: width - 16, y: bottom + 36, "text-anchor": "end" }, "error / limit"));
  chart.append(grid, ...phases.map((phase, at) => phaseBars(phase, x, at * PHASE_HEIGHT)));
  return chart;
}

/** The bars of a phase, with their own scale of counts. */
function phaseBars({ phase, counts, exact, undetectable }, x, top) {
  const { edges } = view.histogram;
  const most = Math.max(1, exact, ...counts);
  const base = top + PHASE_HEIGHT - 8;
  const group = svg("g", { role: "listitem", "aria-label": `${phase}: ${plural(exact, "tensor")} without error, ${plural(counts.reduce((sum, count, at) => sum + (edges[at] >= 0 ? count : 0), 0), "tensor")} beyond the limit, ${whole(undetectable)} undetectable` });
  group.append(svg("text", { x: 0, y: base - BAR_HEIGHT / 2 }, phase), svg("text", { class: "tick", x: 0, y: base - BAR_HEIGHT / 2 + 16 }, `most: ${whole(most)}`), svg("line", { class: "grid", x1: LEFT, x2: x(Math.max(1, Math.ceil(edges.at(-1)))), y1: base, y2: base }));
  const bar = (from, to, count, name, lines) => {
    const tall = Math.max(1.5, (count / most) * BAR_HEIGHT);
    return explain(svg("g", { class: "bin" }, svg("rect", { class: "hit", x: from, y: base - BAR_HEIGHT, width: to - from, height: BAR_HEIGHT }), svg("rect", { class: name, x: from + 0.5, y: base - tall, width: Math.max(1, to - from - 1), height: tall })), () => lines);
  };
  if (exact) group.append(bar(LEFT + 8, LEFT + 32, exact, "within", [`${phase}: no error`, plural(exact, "tensor")]));
  counts.forEach((count, at) => {
    if (count) group.append(bar(x(edges[at]), x(edges[at + 1]), count, edges[at] >= 0 ? "above" : "within", [`${phase}: ${binName(edges, at)} of the limit`, plural(count, "tensor")]));
  });
  return group;
}
