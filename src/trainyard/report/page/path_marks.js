// The critical path over the timeline: its segments outlined, connected across lanes and ranks, and the rest dimmed.

import { ink } from "./colours.js";
import { el } from "./dom.js";
import { stroke } from "./marks.js";
import { shapePath } from "./path_segments.js";
import { setState, state, watch } from "./state.js";
import { RULER } from "./timeline.js";

const VEIL = 0.66;
const NO_OP = ["latency", "unexplained"];

/** Draws the path over the lanes of a timeline. */
export function drawPath(line, pen) {
  if (!state.path || !line.path) return;
  const { boxes, waits, links } = shapePath(line.path, line.from, line.to, (ns) => line.x(ns), rowFinder(line), (share) => NO_OP.includes(line.packed.path.shares[share][2]));
  const top = ({ y }) => RULER + y - line.scroll;
  const tall = ({ height }) => Math.max(2, height - (height > 12 ? 3 : 1.5));
  const middle = (row) => top(row) + tall(row) / 2;
  pen.beginPath();
  pen.rect(line.gutter, RULER, line.inner, line.height);
  for (const { row, left, right } of boxes) pen.rect(left, top(row), Math.max(1, right - left), tall(row));
  Object.assign(pen, { globalAlpha: VEIL, fillStyle: ink("--card") });
  pen.fill("evenodd");
  pen.globalAlpha = 1;
  for (const { row, left, right } of waits) stroke(pen, ink("--accent"), [[left, middle(row)], [right, middle(row)]], [2, 2]);
  for (const [from, row, to, next] of links) stroke(pen, ink("--accent"), [[from, middle(row)], [to, middle(next)]]);
  Object.assign(pen, { strokeStyle: ink("--accent"), lineWidth: 1.25 });
  for (const { row, left, right } of boxes) pen.strokeRect(left, top(row), Math.max(1, right - left), tall(row));
}

/**
 * A function from the number of a lane to {y, height} of the rows that show it: all rows of a host thread, the row of another lane, else that of the
 * ledger of its rank, else the first of its rank; null for none.
 */
function rowFinder(line) {
  const rows = new Map();
  for (const row of line.rows) {
    const { rank, kind, details } = row.lane;
    const thread = kind === "host" ? `${rank}:${details.thread[0]}` : null;
    const all = rows.get(thread);
    if (all) all.height = row.y + row.height - all.y;
    else if (thread) rows.set(thread, { y: row.y, height: row.height });
    rows.set(row.lane, thread ? rows.get(thread) : row);
    if (!rows.has(rank) || kind === "ledger") rows.set(rank, row);
  }
  return (number) => (number < 0 ? null : rows.get(line.lanes[number]) ?? rows.get(line.lanes[number].rank) ?? null);
}

/** The button that shows or hides the path; null if the page has none. */
export function pathButton(line) {
  if (!line.path) return null;
  const button = el("button", { type: "button", class: "more", onclick: () => setState({ path: !state.path }) }, "Critical path");
  const show = () => button.setAttribute("aria-pressed", String(state.path));
  watch(show);
  show();
  return button;
}
