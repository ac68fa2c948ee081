// The memory page, from top to bottom.

import { area, momentText } from "./area.js";
import { tuned } from "./colours.js";
import { css } from "./contrast.js";
import { view } from "./data.js";
import { el } from "./dom.js";
import { saveCsv, section } from "./export.js";
import { actions, foot, hero, shareCell, sortable } from "./frame.js";
import { heldBar } from "./held_bar.js";
import { plural, share, size, time, whole } from "./numbers.js";
import { segments } from "./segments.js";
import { readHash, setState, showTheme, state } from "./state.js";

const heldTotal = () => Object.values(view.held).reduce((sum, bytes) => sum + bytes, 0);
const HOLDER_HEADS = ["location", "category", "bytes", "requested", "blocks", "age_ns", "stack"];
const holderRows = () => view.holders.map((row) => [row.location, row.category, row.size, row.requested, row.count, row.age_ns, row.stack.join(" < ")]);
const saveHolders = () => saveCsv("holders", [HOLDER_HEADS, ...holderRows()]);

/** Draws the table of failed allocations, with the reason of each. */
function shortages() {
  if (!view.shortages.length) return;
  const card = section("shortages", "Out of memory", "why did it fail?", { nav: "Out of memory", csv: () => saveCsv("shortages", rows()) });
  const heads = ["event", "requested", "cached_free", "usable", "largest_piece", "device_free", "reason", "location"];
  const rows = () => [heads, ...view.shortages.map((one) => [one.event, one.requested, one.unused, one.usable, one.largest, one.device_free, one.reason, one.location])];
  const columns = [
    { head: "Event", of: (row) => row.event, number: true, first: true },
    { head: "Requested", of: (row) => row.requested, number: true, show: (row) => size(row.requested) },
    { head: "Cached, free", of: (row) => row.unused, number: true, show: (row) => size(row.unused) },
    { head: "for its pool", of: (row) => row.usable, number: true, show: (row) => size(row.usable) },
    { head: "largest piece", of: (row) => row.largest, number: true, show: (row) => size(row.largest) },
    { head: "Free on device", of: (row) => row.device_free, number: true, show: (row) => size(row.device_free) },
    { head: "Reason", of: (row) => view.reasons[row.reason] },
    { head: "Location", of: (row) => row.location, show: (row) => el("span", { class: "name" }, row.location || "–") },
  ];
  card.append(sortable("Failed allocations", columns, view.shortages, { limit: 12 }));
}

/** Draws the table of source locations that held memory at the peak. */
function holders() {
  const { curve } = view;
  const note = `everything allocated at ${momentText(curve, curve.ns[curve.peak])}, by place in the code: ${whole(heldTotal())} bytes`;
  const card = section("peak", "Allocations at the peak", note, { nav: "The peak", csv: saveHolders });
  if (!view.holders.length) {
    card.append(el("p", { class: "empty" }, "Nothing was allocated."));
    return;
  }
  const colours = new Map(view.kinds.map(({ label, colour }) => [label, colour]));
  const most = Math.max(...view.holders.map((row) => row.size)) / heldTotal();
  const columns = [
    { head: "Location", of: (row) => row.location, show: holderCell },
    { head: "Category", of: (row) => view.categories[row.category], show: (row) => categoryCell(view.categories[row.category], colours) },
    { head: "Size", of: (row) => row.size, number: true, first: true, show: (row) => size(row.size) },
    { head: "Share", of: (row) => row.size, number: true, show: (row) => shareCell(row.size / heldTotal(), most) },
    { head: "Blocks", of: (row) => row.count, number: true },
    { head: "Rounding", of: (row) => row.size - row.requested, number: true, show: (row) => size(row.size - row.requested) },
    { head: "Age", of: (row) => row.age_ns, number: true, show: (row) => (row.age_ns < 0 ? "–" : time(row.age_ns)) },
  ];
  const [places, bytes, blocks] = view.rest;
  const foot = places ? el("tr", {}, el("th", { scope: "row" }, plural(places, "more place")), el("td"), el("td", { class: "number" }, size(bytes)), el("td", { class: "number" }, share(bytes, heldTotal())), el("td", { class: "number" }, whole(blocks)), el("td"), el("td")) : null;
  const mark = (row, line) => line.classList.toggle("chosen", Boolean(state.kind) && view.categories[row.category] === state.kind);
  card.append(heldBar(view), sortable("Allocations at the peak", columns, view.holders, { limit: 14, foot, mark }));
}

/** A source location; its stack opens on a click. */
function holderCell(row) {
  const name = el("span", { class: "name" }, row.location || "(no stack)");
  if (!row.stack.length) return name;
  return el("details", { class: "stack" }, el("summary", {}, name), el("ol", {}, ...row.stack.map((line) => el("li", {}, line))));
}

/** A category with its colour. `colours`: label -> colour. */
function categoryCell(label, colours) {
  const dot = el("i", { class: "dot", "aria-hidden": "true" });
  if (colours.has(label)) dot.style.background = css(tuned(colours.get(label)));
  return el("span", {}, dot, label);
}

/** Draws the table of reserved and unused memory at the peak and at the end. */
function fragments() {
  if (!view.fragments.length) return;
  const heads = ["when", "reserved", "active", "unused", "pieces", "largest", "split", "rounding", "segments"];
  const rows = () => [heads, ...view.fragments.map(([label, one]) => [label, ...heads.slice(1).map((head) => one[head])])];
  const card = section("fragments", "Reserved and unused", "cached by the allocator and unused; the part in partly used segments cannot be returned to the driver", { csv: () => saveCsv("fragments", rows()) });
  const columns = [
    { head: "When", of: ([label]) => label },
    ...[["Reserved", "reserved"], ["In use", "active"], ["Unused", "unused"], ["largest piece", "largest"], ["in segments in use", "split"], ["Rounding of allocations", "rounding"]].map(([head, field]) => ({ head, of: ([, one]) => one[field], number: true, first: field === "reserved", show: ([, one]) => size(one[field]) })),
    { head: "Unused share", of: ([, one]) => one.unused / (one.reserved || 1), number: true, show: ([, one]) => share(one.unused, one.reserved) },
    { head: "Pieces", of: ([, one]) => one.pieces, number: true },
    { head: "Segments", of: ([, one]) => one.segments, number: true },
  ];
  card.append(sortable("Reserved and unused", columns, view.fragments, { limit: 4 }));
}

/** Builds the page of a memory snapshot. */
function main() {
  Object.assign(state, readHash());
  showTheme(state.theme);
  actions(saveHolders);
  hero();
  area({ ...view, choice: "kind" }, { id: "time", note: "allocated blocks by category, reserved above them", nav: "Over time" });
  shortages();
  holders();
  fragments();
  segments();
  foot();
  addEventListener("hashchange", () => {
    if (!/^#[a-z]+$/.test(location.hash)) setState(readHash(), { write: false });
  });
}

main();
