// What is written on the timeline around its slices.

import { ink } from "./colours.js";
import { onto } from "./contrast.js";
import { view } from "./data.js";
import { firstAfter } from "./lanes.js";
import { fixed, tickStep } from "./numbers.js";
import { drawGroupNames, hasGroups } from "./rank_groups.js";
import { state } from "./state.js";
import { fitted, SMALL, textWidth } from "./text.js";
import { RULER } from "./timeline.js";

const MONO = "10.5px ui-monospace, Menlo, Consolas, monospace";

/** Draws text on a canvas context (`pen`) at px coordinates. */
export function write(pen, text, x, y, { font = SMALL, fill = ink("--dim"), align = "left" } = {}) {
  Object.assign(pen, { font, fillStyle: fill, textAlign: align });
  pen.fillText(text, x, y);
}

/** Draws a line through points on a canvas context (`pen`). `dash`: lengths of dashes and gaps in px. */
export function stroke(pen, colour, points, dash = []) {
  pen.beginPath();
  points.forEach(([x, y], at) => (at ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  Object.assign(pen, { strokeStyle: colour, lineWidth: 1 });
  pen.setLineDash(dash);
  pen.stroke();
  pen.setLineDash([]);
}

/** Time above the lanes, and the steps of the selected rank above the time. */
export function drawRuler(line, pen) {
  const span = line.to - line.from;
  const step = tickStep(span, line.inner / 110);
  const digits = Math.max(0, Math.min(6, Math.ceil(6 - Math.log10(step) - 1e-9)));
  const bottom = RULER + line.height;
  for (let ns = Math.max(0, Math.ceil(line.from / step) * step); ns <= line.to; ns += step) {
    const x = Math.round(line.x(ns)) + 0.5;
    stroke(pen, ink("--grid"), [[x, 20], [x, bottom]]);
    if (x < line.width - 40) write(pen, `${fixed(ns / 1e6, digits)} ms`, x + 4, 30);
  }
  for (const [label, start, stop] of line.steps) {
    const [left, right] = [Math.max(line.gutter, line.x(start)), Math.min(line.width - 10, line.x(stop))];
    if (right - left < 3) continue;
    stroke(pen, ink("--line"), [[left + 1, 15.5], [right - 1, 15.5]]);
    write(pen, fitted(label, right - left - 8, SMALL), (left + right) / 2, 11, { align: "center", fill: ink("--ink") });
  }
  stroke(pen, ink("--line"), [[0, RULER - 0.5], [line.width, RULER - 0.5]]);
}

/** Shades the selected range. */
export function drawRange(line, pen) {
  if (state.left === null) return;
  const [left, right] = [line.x(state.left), line.x(state.right)].map((x) => Math.max(line.gutter, Math.min(line.width - 10, x)));
  pen.globalAlpha = 0.1;
  pen.fillStyle = ink("--accent");
  pen.fillRect(left, RULER, right - left, line.height);
  pen.globalAlpha = 1;
  for (const x of [left, right]) stroke(pen, ink("--accent"), [[x, RULER], [x, RULER + line.height]]);
}

/** Rank names, steps' borders, and the slices that are pointed at or chosen. */
export function drawMarks(line, pen) {
  if (hasGroups) drawGroupNames(line, pen);
  else drawRankNames(line, pen);
  for (const ns of new Set(line.steps.flatMap(([, start, stop]) => [start, stop]))) {
    const x = Math.round(line.x(ns)) + 0.5;
    if (x >= line.gutter && x <= line.width - 10) stroke(pen, ink("--dim"), [[x, RULER], [x, RULER + line.height]], [3, 3]);
  }
  for (const [slice, colour] of [[line.hover, "--dim"], [line.chosen, "--ink"]]) if (slice) outline(line, pen, slice, ink(colour));
}

/** Names of ranks and lanes, and the borders between hosts. */
function drawRankNames(line, pen) {
  const first = line.rows.filter(({ lane }, at) => !at || lane.rank !== line.rows[at - 1].lane.rank);
  const pitch = first.length > 1 ? first[1].y - first[0].y : 99;
  const every = [1, 2, 4, 8, 16, 32, 64, 128].find((count) => count * pitch >= 14) ?? 256;
  const blamed = view.heat?.blamed ?? -1;
  const loud = first.filter(({ lane }) => lane.rank === state.rank || lane.rank === blamed);
  for (const row of line.named ? line.rows : first) {
    const { rank } = row.lane;
    const special = rank === blamed || rank === state.rank;
    const y = RULER + row.y - line.scroll;
    const crowded = loud.some((other) => other !== row && Math.abs(other.y - row.y) < 13);
    if (!line.named && !special && (first.indexOf(row) % every || crowded)) continue;
    if (row.lane.kind === "host" && row.lane.depth) continue;
    const text = line.named || row.lane.kind === "host" ? line.laneName(row.lane) : rank === blamed || rank === state.rank ? `rank ${rank} ▸` : `rank ${rank}`;
    write(pen, fitted(text, line.gutter - 10, SMALL), line.gutter - 8, y + Math.max(row.height / 2 + 3, 10), { align: "right", fill: ink(rank === blamed ? "--bad" : rank === state.rank ? "--accent" : "--dim") });
  }
  for (const row of first.slice(1)) {
    const before = first[first.indexOf(row) - 1];
    if (line.hostOf(row.lane.rank) === line.hostOf(before.lane.rank)) continue;
    const y = Math.round(RULER + row.y - line.scroll) - 0.5;
    stroke(pen, ink("--node"), [[0, y], [line.width, y]]);
  }
}

/** Draws a frame around a slice, {lane, index}, as far as it is in view. */
export function outline(line, pen, { lane, index }, colour) {
  const row = line.rows.find((candidate) => candidate.lane === lane);
  if (!row) return;
  const left = Math.max(line.gutter - 2, line.x(lane.starts[index]));
  const right = Math.min(line.width, line.x(lane.ends[index]));
  if (right < line.gutter || left > line.width) return;
  Object.assign(pen, { strokeStyle: colour, lineWidth: 1.5 });
  pen.strokeRect(left - 0.5, RULER + row.y - line.scroll - 0.5, Math.max(2, right - left) + 1, row.height);
}

/** Names inside the slices that have room for one. */
export function drawNames(line, pen, lane, top, height, paint) {
  const letter = textWidth("m", MONO);
  for (let at = firstAfter(lane, line.from); at < lane.starts.length && lane.starts[at] < line.to; at += 1) {
    const left = Math.max(line.gutter, line.x(lane.starts[at]));
    const room = Math.floor((Math.min(line.width - 10, line.x(lane.ends[at])) - left - 8) / letter);
    if (room < 3) continue;
    const colour = paint[lane.kinds[at]];
    const name = line.names[lane.kinds[at]].replace(/^void /, "");
    const fill = colour[3] < 1 ? ink("--dim") : onto(colour.slice(0, 3));
    write(pen, name.length > room ? `${name.slice(0, room - 1)}…` : name, left + 4, top + height / 2 + 2.5, { font: MONO, fill });
  }
}

/** Where in the whole the window lies (below), and in the ranks (right), once it is not all of it. */
export function drawOverview(line, pen) {
  const bar = (colour, x, y, width, height) => {
    pen.fillStyle = ink(colour);
    pen.fillRect(x, y, width, height);
  };
  if (state.from !== null) {
    const y = RULER + line.height + 5;
    bar("--grid", line.gutter, y, line.inner, 4);
    bar("--accent", line.gutter + (line.from / line.length) * line.inner, y, Math.max(3, ((line.to - line.from) / line.length) * line.inner), 4);
  }
  if (line.tall > line.height) {
    bar("--grid", line.width - 5, RULER, 4, line.height);
    bar("--dim", line.width - 5, RULER + (line.scroll / line.tall) * line.height, 4, Math.max(12, (line.height / line.tall) * line.height));
  }
}
