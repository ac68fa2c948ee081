// A pipeline schedule as papers draw it: a row for each rank, a box for each pass of a micro-batch.

import { axesOf, evenTicks } from "./axes.js";
import { tuned } from "./colours.js";
import { css, onto } from "./contrast.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveDrawing, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { fixed, scaleFor, share, time } from "./numbers.js";
import { chartKeys, coloured, linear } from "./plot.js";
import { SMALL, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

const PASSES = {
  F: ["Forward", "#3b6fdb"],
  B: ["Backward", "#2f9e8f"],
  I: ["Backward, inputs", "#48ab9d"],
  W: ["Backward, weights", "#e0a02b"],
};

/** Draws the section with the schedule `data`. */
export function pipeline(data) {
  if (!data) return;
  const card = section("pipeline", data.title, `${data.note}; the number in a box is its micro-batch`, {
    nav: "Pipeline",
    csv: () => saveCsv("pipeline", pipelineRows(data)),
    png: () => saveSvg("pipeline", host.firstChild),
    svg: () => saveDrawing("pipeline", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const kinds = [..."FBIW"].filter((kind) => data.kinds.includes(kind));
  card.append(chartKeys("Passes", kinds.map((kind) => [PASSES[kind][0], coloured(PASSES[kind][1])])), host, details("The passes as a table", () => pipelineRows(data)));
  redrawn(host, () => host.replaceChildren(drawPipeline(host.clientWidth, data)));
}

/** A row for each pass after the headings; times in ns, or in forward passes. */
function pipelineRows(data) {
  const scaled = (value) => (data.unit === "ns" ? value : fixed(value / data.ticks, 2));
  const rows = data.rank.map((rank, at) => [data.ranks[rank], PASSES[data.kinds[at]][0], data.stage[at] < 0 ? "" : data.stage[at], data.micro[at], scaled(data.start[at]), scaled(data.length[at])]);
  return [["rank", "pass", "stage", "micro_batch", "start", "length"], ...rows];
}

/** The chart as an SVG element. */
function drawPipeline(width, data) {
  const row = data.ranks.length > 24 ? 14 : 24;
  const left = Math.max(...data.ranks.map((name) => textWidth(name))) + 14;
  const idle = 84;
  const [right, top] = [width - idle, 8];
  const bottom = top + row * data.ranks.length;
  const end = Math.max(...data.start.map((start, at) => start + data.length[at]));
  const x = linear(0, end, left, right);
  const unit = data.unit === "ns" ? scaleFor(end) : { unit: data.unit, size: data.ticks, digits: 0 };
  const xs = evenTicks(0, end / unit.size, Math.max(2, (right - left) / 80)).map((value) => value * unit.size);
  const digits = xs.length > 1 ? Math.max(0, -Math.floor(Math.log10((xs[1] - xs[0]) / unit.size) + 1e-9)) : 0;
  const chart = svg("svg", { width, height: bottom + 40, role: "img", "aria-label": `${data.title}. The table below has every pass.` });
  chart.append(axesOf({ x, y: (value) => value, xs, ys: [], labelX: (value) => fixed(value / unit.size, digits), labelY: String, nameX: unit.unit, nameY: "", box: [left, right, top, bottom] }));
  const stages = new Set(data.stage).size;
  const fills = Object.fromEntries(Object.entries(PASSES).map(([kind, [, colour]]) => [kind, tuned(colour)]));
  const busy = data.ranks.map(() => 0);
  data.rank.forEach((rank, at) => {
    busy[rank] += data.length[at];
    chart.append(passBox(data, at, { x, top: top + rank * row, row, fills, shaded: stages > data.ranks.length && data.stage[at] >= data.ranks.length }));
  });
  data.ranks.forEach((name, rank) => {
    const middle = top + rank * row + row / 2 + 4;
    chart.append(svg("text", { class: "label", x: left - 10, y: middle, "text-anchor": "end" }, name), svg("text", { class: "tick", x: width, y: middle, "text-anchor": "end" }, share(Math.max(0, end - busy[rank]), end)));
  });
  chart.append(svg("text", { class: "tick", x: width, y: bottom + 17, "text-anchor": "end" }, "not in a pass"));
  return chart;
}

/** A pass of a micro-batch as a box; the later stages of a rank are lighter. */
function passBox(data, at, { x, top, row, fills, shaded }) {
  const kind = data.kinds[at];
  const [from, to] = [x(data.start[at]), x(data.start[at] + data.length[at])];
  const wide = Math.max(0.8, to - from - 0.6);
  const colour = fills[kind];
  const fill = shaded ? colour.map((value) => Math.round(value + (255 - value) * 0.42)) : colour;
  const label = String(data.micro[at]);
  const group = svg("g", { class: "pass" }, svg("rect", { class: "body", x: from, y: top + 1.5, width: wide, height: row - 3, rx: Math.min(2, wide / 3), fill: css(fill) }));
  // A digit of 9 px takes 5.8 px.
  const small = textWidth(label, SMALL) + 3 >= wide;
  if ((!small || label.length * 5.8 < wide) && row > 15) {
    const number = svg("text", { class: small ? "box-label tiny" : "box-label", x: from + wide / 2, y: top + row / 2 + 4, "text-anchor": "middle" }, label);
    number.style.fill = onto(fill);
    group.append(number);
  }
  return explain(group, () => [
    `${PASSES[kind][0]}, micro-batch ${data.micro[at]}`,
    data.ranks[data.rank[at]],
    data.stage[at] >= 0 ? `stage ${data.stage[at]}` : null,
    data.unit === "ns" ? `${time(data.length[at])} from ${time(data.start[at])}` : `${fixed(data.length[at] / data.ticks, 2)} forward passes`,
  ]);
}
