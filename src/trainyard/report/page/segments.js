// Reserved memory as it lies: a row a segment, as long as the segment is large.

import { fillOf } from "./area.js";
import { ink } from "./colours.js";
import { view } from "./data.js";
import { el, svg } from "./dom.js";
import { redrawn, saveCsv, saveSvg, section } from "./export.js";
import { plural, size } from "./numbers.js";
import { watch } from "./state.js";
import { explain } from "./tooltip.js";

const [FREE, PENDING] = [-1, -2];
const ROW = 17;

/** Draws the section "Segments": the allocator's segments at a moment that buttons select. */
export function segments() {
  if (!view.segments.length) return;
  let [shown] = view.segments;
  const note = "each row is a segment allocated from the driver, by address; empty parts are cached and free";
  const card = section("segments", "Segments", note, {
    nav: "Segments", csv: () => saveCsv("segments", segmentRows(shown)), png: () => saveSvg("segments", host.firstChild),
  });
  const host = el("div", { class: "chart" });
  const left = el("p", { class: "facts" });
  const keys = view.segments.map((map) => el("button", { type: "button", onclick: () => show(map) }, map.label));
  const draw = () => host.replaceChildren(drawSegments(shown, host.clientWidth));
  const show = (map) => {
    shown = map;
    keys.forEach((key, at) => key.setAttribute("aria-pressed", String(view.segments[at] === map)));
    left.textContent = map.left_out ? `${plural(map.left_out, "smaller segment")} of ${size(map.left_bytes)} together left out` : "";
    if (host.clientWidth) draw();
  };
  card.append(el("div", { class: "legend keys", role: "group", "aria-label": "Moment" }, ...keys), host, left);
  show(shown);
  redrawn(host, draw);
  watch((changed) => changed.includes("kind") && draw());
}

function segmentRows(map) {
  const rows = map.rows.map(({ address, size: bytes, stream, small, free, largest }) => [`0x${address.toString(16)}`, bytes, stream, small ? "small" : "large", free, largest]);
  return [["address", "size", "stream", "pool", "free", "largest_free"], ...rows];
}

/** The segments of a map as an SVG element, one row each. */
function drawSegments(map, width) {
  const [left, right] = [112, width - 72];
  const most = Math.max(1, ...map.rows.map((row) => row.size));
  const chart = svg("svg", { width, height: map.rows.length * ROW + 4, role: "list", "aria-label": `Segments ${map.label}` });
  map.rows.forEach((row, at) => chart.append(segmentRow(row, at * ROW + 2, left, (right - left) / most)));
  return chart;
}

/** A row of pieces, each as long as its bytes; `per`: px per byte. */
function segmentRow(row, top, left, per) {
  const told = `${size(row.size)} at 0x${row.address.toString(16)}, ${row.small ? "small" : "large"} pool, stream ${row.stream}: ${size(row.free)} free, the largest piece ${size(row.largest)}`;
  const group = svg("g", { class: "segment", role: "listitem", tabindex: 0, "aria-label": told });
  const wide = Math.max(2, row.size * per);
  group.append(svg("text", { class: "tick", x: left - 8, y: top + 10.5, "text-anchor": "end" }, `0x${row.address.toString(16)}`));
  group.append(svg("rect", { class: "empty-memory", x: left, y: top, width: wide, height: ROW - 4 }));
  let at = left;
  for (const [look, bytes] of row.pieces) {
    const end = at + bytes * per;
    if (look !== FREE) {
      const fill = look === PENDING ? ink("--node") : fillOf(view.kinds[look].label, view.kinds[look].colour);
      group.append(svg("rect", { x: at, y: top, width: Math.max(0.3, end - at - (end - at > 3 ? 0.6 : 0)), height: ROW - 4, fill }));
    }
    at = end;
  }
  group.append(svg("text", { class: "tick", x: left + wide + 6, y: top + 10.5 }, size(row.size)));
  const held = new Map();
  for (const [look, bytes] of row.pieces) held.set(look, (held.get(look) ?? 0) + bytes);
  const name = (look) => (look === FREE ? "free" : look === PENDING ? "waiting for another stream" : view.kinds[look].label);
  return explain(group, () => [told, ...[...held].sort((a, b) => b[1] - a[1]).map(([look, bytes]) => `${name(look)}: ${size(bytes)}`)]);
}
