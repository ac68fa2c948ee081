// Memory by part, a bar for each layout shown, against the capacity of a device.

import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { details } from "./frame.js";
import { decimal, fixed, tickStep } from "./numbers.js";
import { chartKeys, coloured, dressed, limitBeside, linear } from "./plot.js";
import { fitted, textWidth } from "./text.js";
import { explain } from "./tooltip.js";

/** Draws the section with the memory of each layout by part. */
export function stacks() {
  const { parts, limit, usable, reserved } = view.planned;
  const has = limit ? `; a device has ${decimal(limit)}, of which ${fixed(100 * usable, 0)} % can be used` : "";
  const card = section("memory", "Memory of the fullest rank", `by part, and what the allocator reserves beyond (${fixed(reserved, 1)} times in all)${has}; a label is layout · micro-batch · activation checkpointing`, {
    nav: "Memory", csv: () => saveCsv("plan-memory", stackRows()), png: () => saveSvg("plan-memory", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  card.append(
    chartKeys("Parts", [...parts.map(({ label, colour }) => [label, coloured(colour)]), ["Reserved beyond", dressed("beyond")]]),
    host, details("Memory as a table, bytes", stackRows));
  redrawn(host, () => host.replaceChildren(drawStacks(host.clientWidth)));
}

function stackRows() {
  const { parts, stacks: rows } = view.planned;
  return [["layout", ...parts.map(({ label }) => label), "reserved"], ...rows.map((row) => [row.label, ...row.sizes, row.reserved])];
}

/** The bars of all layouts as an SVG element of `width` px. */
function drawStacks(width) {
  const { stacks: rows } = view.planned;
  const limit = limitBeside(rows.map((row) => row.reserved));
  const narrow = width < 900;
  const [high, top] = [narrow ? 44 : 29, 30];
  const left = narrow ? 0 : Math.min(Math.ceil(Math.max(...rows.map(({ label }) => textWidth(label)))) + 14, Math.floor(width * 0.4));
  const most = Math.max(1, limit, ...rows.map((row) => row.reserved));
  const x = linear(0, most, left, width - 78);
  const bottom = top + rows.length * high;
  const chart = svg("svg", { width, height: bottom + 24, role: "list", "aria-label": "Memory of each layout by part" });
  chart.append(stackAxis(x, most, top, bottom));
  rows.forEach((row, at) => chart.append(drawStack(row, { x, left, width, narrow, y: top + at * high, high })));
  if (limit) chart.append(stackLimits(x, top, bottom));
  return chart;
}

/** Grid lines and labels of bytes, up to `most`. */
function stackAxis(x, most, top, bottom) {
  const group = svg("g", { "aria-hidden": "true" });
  const step = tickStep(most, (x(most) - x(0)) / 90);
  for (let bytes = 0; bytes <= most; bytes += step) {
    group.append(svg("line", { class: "grid", x1: x(bytes), x2: x(bytes), y1: top - 4, y2: bottom }));
    group.append(svg("text", { class: "tick", x: x(bytes), y: bottom + 17, "text-anchor": bytes ? "middle" : "start" }, bytes ? decimal(bytes, step >= 1e9 || bytes < 1e9 ? 0 : 1) : "0"));
  }
  return group;
}

/** The capacity of a device, and its usable part. */
function stackLimits(x, top, bottom) {
  const { limit, usable } = view.planned;
  const group = svg("g", { "aria-hidden": "true" });
  for (const [bytes, name, told, anchor] of [[limit * usable, "limit usable", `${decimal(limit * usable)} can be used`, "end"], [limit, "limit", decimal(limit), "start"]]) {
    group.append(svg("line", { class: name, x1: x(bytes), x2: x(bytes), y1: top - 8, y2: bottom }));
    group.append(svg("text", { class: "tick", x: x(bytes) + (anchor === "end" ? 2 : 0), y: top - 14, "text-anchor": anchor }, told));
  }
  return group;
}

/** The bar of one layout: its parts in order, with a tooltip each. */
function drawStack(row, { x, left, width, narrow, y, high }) {
  const { parts } = view.planned;
  const bar = y + (narrow ? 21 : 5);
  const told = parts.map(({ label }, at) => [label, row.sizes[at]]).filter(([, bytes]) => bytes).map(([label, bytes]) => `${label} ${decimal(bytes)}`);
  const group = svg("g", { class: "bar", tabindex: 0, role: "listitem", "aria-label": `${row.label}: reserved ${decimal(row.reserved)}; ${told.join(", ")}` });
  group.append(svg("rect", { class: "hit", x: 0, y, width, height: high, rx: 4 }));
  const room = narrow ? width : left - 14;
  group.append(svg("text", { class: "label", x: narrow ? 0 : left - 12, y: narrow ? y + 14 : y + 18.5, "text-anchor": narrow ? "start" : "end" }, fitted(row.label, room)));
  let below = 0;
  row.sizes.forEach((bytes, at) => {
    if (!bytes) return;
    group.append(svg("rect", { class: "body", x: x(below), y: bar, width: Math.max(0.5, x(below + bytes) - x(below)), height: 17, fill: css(tuned(parts[at].colour)) }));
    below += bytes;
  });
  if (row.reserved > below) group.append(svg("rect", { class: "beyond", x: x(below), y: bar + 0.5, width: Math.max(0.5, x(row.reserved) - x(below) - 0.5), height: 16 }));
  group.append(svg("text", { class: "value", x: width, y: bar + 13, "text-anchor": "end" }, decimal(row.reserved)));
  return explain(group, () => [row.label, `reserved ${decimal(row.reserved)}, allocated ${decimal(below)}`, ...told]);
}
