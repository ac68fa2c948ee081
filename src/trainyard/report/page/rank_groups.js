// Pages of many ranks: the control for the order of ranks, and the timeline's rows of groups and ranks.

import { ink } from "./colours.js";
import { view } from "./data.js";
import { el } from "./dom.js";
import { stroke, write } from "./marks.js";
import { plural } from "./numbers.js";
import { foldHeat, groupOf, rankItems, rankOrders, readOpen, writeOpen } from "./rank_order.js";
import { setState, state, watch } from "./state.js";
import { fitted, SMALL } from "./text.js";
import { HOST_HEIGHT, RULER } from "./timeline.js";

const GROUP_GUTTER = 208;
const HEAD_HEIGHT = 20;
const MOST_BUTTONS = 24;
const MOST_COLUMNS = 128;

/** Whether the page has so many ranks that they are drawn in groups. */
export const hasGroups = Boolean(view.groups) && Boolean(view.heat);

const orders = hasGroups ? rankOrders(view.groups, view.heat.ranks) : {};

/** The order in force, and the numbers of its open groups. */
const currentOrder = () => orders[state.by] ?? Object.values(orders)[0];
const openGroups = () => readOpen(state.open);

/** The rows or columns to draw, as of `rankItems`. */
const shownItems = () => rankItems(currentOrder(), openGroups(), state.rank);

/** Whether a change of the page's state changes them. `changed`: names. */
export const regroups = (changed) => hasGroups && ["by", "open", "rank"].some((name) => changed.includes(name));

/** The heat map to draw: `heat` itself, or that of groups. */
export const shownHeat = (heat) => (hasGroups ? foldHeat(heat, shownItems(), MOST_COLUMNS) : heat);

/** Opens or closes a group. */
function toggleGroup(group) {
  const numbers = openGroups();
  if (!numbers.delete(group)) numbers.add(group);
  setState({ open: writeOpen(numbers) });
}

/** Opens or closes the group of the selected rank; false if there is none. */
export function toggleSelected() {
  const group = hasGroups && state.rank !== null ? groupOf(currentOrder(), state.rank) : -1;
  if (group >= 0) toggleGroup(group);
  return group >= 0;
}

/** The control: the order of ranks. */
export function orderControl() {
  const choices = el("div", { class: "legend orders", role: "group", "aria-label": "Order of ranks" }, el("span", {}, "Ranks by"));
  for (const [name, { label }] of Object.entries(orders)) {
    const key = el("button", { type: "button", onclick: () => setState({ by: name, open: "" }) }, label);
    const show = () => key.setAttribute("aria-pressed", String(currentOrder() === orders[name]));
    watch(show);
    show();
    choices.append(key);
  }
  return choices;
}

/** A button for each group of several ranks, which opens or closes it; hidden if there are too many. */
export function groupButtons() {
  const groups = el("div", { class: "legend groups", role: "group", "aria-label": "Groups of ranks; select one to show its ranks" });
  const list = () => {
    const own = (currentOrder().groups ?? []).map((group, number) => ({ ...group, number })).filter(({ ranks }) => ranks.length > 1);
    groups.hidden = !own.length || own.length > MOST_BUTTONS;
    groups.replaceChildren(...(groups.hidden ? [] : own.map(({ label, ranks, number }) => {
      const isOpen = openGroups().has(number);
      return el("button", { type: "button", "aria-expanded": String(isOpen), onclick: () => toggleGroup(number) }, `${isOpen ? "▾" : "▸"} ${plural(ranks.length, "rank")} · ${label}`);
    })));
  };
  watch((changed) => (changed.includes("by") || changed.includes("open")) && list());
  list();
  return groups;
}

/** Lays out the rows of the timeline `line`: {lane, y, height}, with `head` (an item) for the row of a group. */
export function layoutGroups(line) {
  const lanesOf = new Map();
  for (const lane of line.shownLanes) lanesOf.set(lane.rank, [...(lanesOf.get(lane.rank) ?? []), lane]);
  const shown = shownItems().filter(({ rank }) => lanesOf.has(rank));
  const thin = Math.max(5, Math.min(14, Math.floor(460 / shown.length)));
  const rows = [];
  let y = 0;
  for (const item of shown) {
    const [summary, ...streams] = lanesOf.get(item.rank);
    if (item.members) {
      y += y ? 5 : 0;
      rows.push({ lane: summary, y, height: HEAD_HEIGHT, head: item });
      y += HEAD_HEIGHT;
      if (item.members.length > 1) continue;
    }
    const isSelected = item.rank === state.rank;
    const own = [...(item.members ? [] : [summary]), ...(isSelected ? streams : [])];
    for (const lane of own) {
      const height = lane.kind === "host" ? HOST_HEIGHT : isSelected ? HEAD_HEIGHT : thin;
      rows.push({ lane, y, height });
      y += height;
    }
  }
  Object.assign(line, { rows, tall: y, gutter: GROUP_GUTTER, named: false });
}

/** Opens or closes the group whose name is at a point of the canvas, or selects the rank there; false if there is none. */
export function toggleAt(line, x, y) {
  if (!hasGroups || x >= line.gutter) return false;
  const deep = y - RULER + line.scroll;
  const row = line.rows.find(({ y: begin, height }) => deep >= begin && deep < begin + height);
  if (row?.head?.members.length > 1) toggleGroup(row.head.group);
  else if (row) setState({ rank: row.lane.rank });
  return Boolean(row);
}

/** Writes the names of groups and ranks next to their rows. */
export function drawGroupNames(line, pen) {
  const blamed = view.heat.blamed;
  const needed = 13;
  let free = -Infinity;
  const special = line.rows.filter(({ lane, head }) => !head && lane.rank === state.rank).map(({ y }) => y);
  line.rows.forEach((row, at) => {
    const y = RULER + row.y - line.scroll;
    const { rank } = row.lane;
    const before = at ? line.rows[at - 1] : null;
    const isFirst = !before || before.lane.rank !== rank || before.head?.members.length > 1;
    if (row.head) {
      const { members, label, open: isOpen } = row.head;
      if (at) stroke(pen, ink("--line"), [[0, Math.round(y) - 2.5], [line.width, Math.round(y) - 2.5]]);
      const name = members.length === 1 ? `rank ${rank} · ${label}` : `${isOpen ? "▾" : "▸"} ${plural(members.length, "rank")} · ${label}`;
      write(pen, fitted(name, line.gutter - 12, SMALL), 4, y + row.height / 2 + 3, { fill: ink(members.includes(blamed) ? "--bad" : "--ink") });
      free = y + row.height;
      return;
    }
    if (row.lane.kind === "host" && row.lane.depth) return;
    const isSelected = rank === state.rank;
    const isNear = !isSelected && special.some((other) => Math.abs(other - row.y) < needed);
    if (!isSelected && (y < free || isNear)) return;
    const text = isSelected && !isFirst ? row.lane.label : rank === blamed ? `rank ${rank} arrives last` : `rank ${rank}`;
    write(pen, fitted(text, line.gutter - 24, SMALL), line.gutter - 8, y + Math.max(row.height / 2 + 3, 8), { align: "right", fill: ink(rank === blamed ? "--bad" : isSelected ? "--accent" : "--dim") });
    free = y + needed;
  });
}

/** How many ranks have all of their lanes in the page, for the line below the timeline. */
export function detailNote(lanes) {
  if (!hasGroups) return "";
  const [all, detailed] = [new Set(), new Set()];
  for (const { rank } of lanes) (all.has(rank) ? detailed : all).add(rank);
  return `all streams of ${detailed.size} of ${plural(all.size, "rank")}, the others by the account that owns their time`;
}
