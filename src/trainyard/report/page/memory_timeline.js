// Memory of a trace over time, and what held its peak.

import { area } from "./area.js";
import { view } from "./data.js";
import { el } from "./dom.js";
import { heldBar } from "./held_bar.js";
import { size } from "./numbers.js";
import { facts } from "./tables.js";

/** The table of what held the peak, which is drawn below the chart; undefined without one. */
export const heldTable = () => view.tables.find(({ title }) => title === view.charts?.memory?.table);

/** Draws the sections "Memory over time" and what held the peak; nothing without data. */
export function memoryTimeline(data) {
  if (!data) return;
  const peak = Object.values(data.held).reduce((sum, bytes) => sum + bytes, 0);
  const course = { ...data, title: `peak ${size(peak)}`, choice: "memory", length: data.length_ns };
  const card = area(course, { id: "memory", note: `rank ${data.rank}, ${data.device}; allocated by category${data.curve.reserved.length ? ", reserved above" : ""}`, nav: "Memory" });
  card.lastElementChild.before(heldBar(data), el("p", { class: "small" }, data.note));
  const table = heldTable();
  if (table) facts(table, view.tables.indexOf(table));
}
