// Lines on the timeline from the selected slice to the call that launched it and to the other members of its collective.

import { ink } from "./colours.js";
import { outline, stroke } from "./marks.js";
import { launcher, members } from "./selection.js";
import { RULER } from "./timeline.js";

/** Slice -> {call, others}, computed once: a frame is drawn for every movement of the pointer. */
const links = new WeakMap();

/** The call that launched a slice, and the members of its collective. */
function linksOf(line, slice) {
  if (!links.has(slice)) links.set(slice, { call: launcher(line, slice), others: members(line, slice) });
  return links.get(slice);
}

/** Draws the lines of the selected slice, if it has any. */
export function drawArrows(line, pen) {
  const slice = line.chosen;
  if (!slice) return;
  const { call, others } = linksOf(line, slice);
  if (call) drawLaunch(line, pen, call, slice);
  for (const member of others) if (member.lane !== slice.lane) outline(line, pen, member, ink("--accent"));
  const points = others.map(({ lane, arrival }) => pointOf(line, lane, arrival)).filter(Boolean).sort((a, b) => a[1] - b[1]);
  if (points.length > 1) stroke(pen, ink("--accent"), points, [4, 3]);
}

/** [x, y] in px of a time in the middle of a lane; null if the lane is not shown. */
function pointOf(line, lane, ns) {
  const row = line.rows.find((candidate) => candidate.lane === lane);
  return row ? [line.x(ns), RULER + row.y - line.scroll + row.height / 2] : null;
}

/** An arrow from the launching call to the start of the work. */
function drawLaunch(line, pen, call, slice) {
  const [from, to] = [pointOf(line, call.lane, call.ns), pointOf(line, slice.lane, slice.lane.starts[slice.index])];
  if (!from || !to) return;
  const colour = ink("--accent");
  const bend = Math.max(12, Math.min(60, Math.abs(to[0] - from[0]) / 2));
  pen.beginPath();
  pen.moveTo(...from);
  pen.bezierCurveTo(from[0] + bend, from[1], to[0] - bend, to[1], ...to);
  Object.assign(pen, { strokeStyle: colour, lineWidth: 1.5 });
  pen.stroke();
  pen.beginPath();
  pen.moveTo(to[0], to[1]);
  pen.lineTo(to[0] - 7, to[1] - 4);
  pen.lineTo(to[0] - 7, to[1] + 4);
  pen.fillStyle = colour;
  pen.fill();
}
