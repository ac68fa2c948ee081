// The timeline by rank: lanes on a canvas, zoomed and panned.

import { drawArrows } from "./arrows.js";
import { ink, SLICE_CONTRAST, tuned } from "./colours.js";
import { attachControls, choose } from "./controls.js";
import { view } from "./data.js";
import { el } from "./dom.js";
import { redrawn, save, saveCsv, section } from "./export.js";
import { details } from "./frame.js";
import { firstAfter, paintRow, totals, unpack } from "./lanes.js";
import { drawMarks, drawNames, drawOverview, drawRange, drawRuler } from "./marks.js";
import { fixed, plural, time, whole } from "./numbers.js";
import { drawPath } from "./path_marks.js";
import { showPath } from "./path_panel.js";
import { idleRowsOfSteps, ledgerOf, rankOfRange, showRange } from "./range.js";
import { detailNote, hasGroups, layoutGroups, orderControl, regroups } from "./rank_groups.js";
import { setState, state, watch } from "./state.js";
import { SMALL, textWidth } from "./text.js";

export const RULER = 36;
/** The most px of lanes: the panels below them stay in a window of usual height. */
const tallest = () => Math.max(300, Math.min(680, innerHeight - 480));
export const HOST_HEIGHT = 15;

/** The unpacked slices of the page; null if there are none, or if the browser cannot unpack them. */
export async function unpackSlices() {
  const packed = view.timeline;
  if (!packed || !packed.lanes.some(([, , count]) => count)) return null;
  return unpack(packed).catch(() => null);
}

/** Draws the section "Timeline" once `slices`, the promise of `unpackSlices`, is fulfilled; a note if there are none. */
export async function timeline(slices) {
  const packed = view.timeline;
  if (!packed || !packed.lanes.some(([, , count]) => count)) {
    section("timeline", "Timeline", "", { nav: "Timeline" }).append(el("p", { class: "empty" }, "No events were recorded, so there is no timeline. The ledger above does not need one."));
    return;
  }
  const card = section("timeline", "Timeline", "", {
    nav: "Timeline",
    csv: () => saveCsv("timeline", line.slices()),
    png: () => line.canvas.toBlob((blob) => save("timeline.png", blob)),
  });
  card.querySelector(".note").append(el("span", { class: "hint" }, ...["W", "S"].map((key) => el("kbd", {}, key)), " zoom ", ...["A", "D"].map((key) => el("kbd", {}, key)), " pan ", el("kbd", {}, "F"), " fit ", el("kbd", {}, "/"), " search ", el("kbd", {}, "?"), " help"));
  const stage = el("div", { class: "stage" });
  const facts = el("p", { class: "facts" });
  const picked = el("div", { class: "picked", role: "group", "aria-label": "Selected slice", hidden: true });
  const range = el("div", { class: "range", role: "group", "aria-label": "Selected range", hidden: true });
  const controls = el("div", { class: "controls" });
  const count = new Set(packed.lanes.map(([rank]) => rank)).size;
  if (packed.aligned === "no" && count > 1) card.append(el("p", { class: "notice" }, "The clocks of the ranks are not aligned: compare times within a rank, not between ranks. ", packed.alignment));
  card.append(...(hasGroups ? [orderControl()] : []), controls, stage, facts, picked, range);
  const line = new Line(packed, stage, facts, picked, range);
  const unpacked = await slices;
  if (!unpacked) {
    stage.append(cannotUnpack());
    return;
  }
  line.fill(unpacked);
  attachControls(line, controls);
  redrawn(stage, () => line.resize());
  line.showRange();
  const path = el("div", { class: "range", role: "group", "aria-label": "Critical path", hidden: true });
  card.append(path);
  const tellPath = (changed = ["path"]) => ["path", "left", "right"].some((name) => changed.includes(name)) && showPath(line, path);
  watch(tellPath);
  tellPath();
  card.append(details("Ledger of the view", () => line.ledgerRows()), details("Slices in view, by name", () => line.summary()));
  if (line.hostRanks.size) card.append(details("Idle time of the steps, by function", () => idleRowsOfSteps(line)));
  watch((changed) => changed.some((name) => name !== "theme") && line.changed(changed));
  drawn = line;
}

/** The note in place of a timeline that the browser cannot unpack. */
export const cannotUnpack = () => el("p", { class: "empty" }, "This browser cannot unpack the timeline: it needs DecompressionStream, which Chrome has from 80, Safari from 16.4 and Firefox from 113 on. The rest of the page does not need it.");

/** The timeline of the page, once it is drawn. */
let drawn = null;

/**
 * Selects the longest slice that is booked to the account with this label, and scrolls to it. With `lateRank`, for which that slice waits,
 * selects what this rank does meanwhile. Returns whether there is one.
 * @param {string} label
 * @param {number | null} lateRank
 */
export function selectLongest(label, lateRank = null) {
  const slice = drawn?.longest(label);
  if (!slice) return false;
  choose(drawn, (lateRank === null ? null : drawn.during(slice, lateRank)) ?? slice, { follow: true });
  drawn.stage.closest("section").scrollIntoView({ block: "start" });
  return true;
}

/** The timeline: lanes of slices on a canvas, and the range [from, to) ns in view, which is part of the page's state. */
export class Line {
  /** `packed`: the timeline as stored in the page; the elements: the canvas's parent, and lines on the view and on the selected slice. */
  constructor(packed, stage, facts, picked, range) {
    this.packed = packed;
    this.stage = stage;
    this.facts = facts;
    this.picked = picked;
    this.range = range;
    /** The slices that are pointed at and selected, {lane, index}. */
    this.hover = null;
    this.chosen = null;
    this.scroll = 0;
    this.waiting = false;
    /** @type {string[]} */
    this.lowerNames = null;
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline by rank. W and S zoom, A and D pan, the arrow keys select a slice, F fits, slash searches, question mark lists all keys. Tables of the slices in view follow." });
    this.raster = document.createElement("canvas");
    const hosts = new Map((view.heat?.ranks ?? []).map((rank, column) => [rank, view.heat.nodes[column]]));
    this.hostOf = (rank) => hosts.get(rank);
    stage.append(this.canvas);
  }

  /** Takes the unpacked slices, see `unpack`. */
  fill({ names, lanes, stacks, shapes, stepsOfRanks, path }) {
    this.names = names;
    this.lanes = lanes;
    this.stacks = stacks;
    this.shapes = shapes;
    this.stepsOfRanks = stepsOfRanks;
    this.path = path;
    this.hostRanks = new Set(lanes.filter(({ kind }) => kind === "host").map(({ rank }) => rank));
    this.length = Math.max(1, this.packed.length, ...lanes.map((lane) => lane.ends.at(-1) ?? 0));
    this.asked = null;
  }

  /** The names in lower case, in which a search looks. */
  get lower() { return (this.lowerNames ??= this.names.map((name) => name.toLowerCase())); }

  get from() { return state.from ?? -this.length * 0.004; }
  get to() { return state.to ?? this.length * 1.012; }

  /** The rank whose host lanes are shown: the selected one, else the first that has any; null if they are switched off. */
  get hostRank() {
    if (!state.host) return null;
    return this.hostRanks.has(state.rank) ? state.rank : state.rank === null ? [...this.hostRanks][0] ?? null : null;
  }

  /** [label, start, stop] in ns of each step of a rank. */
  stepsOf(rank) { return this.stepsOfRanks.get(rank) ?? this.packed.steps; }

  /** The steps of the selected rank, else of the first. */
  get steps() { return this.stepsOf(rankOfRange(this)); }

  /** The label of a kind in the legend. */
  labelOf(kind) { return this.packed.legend[this.packed.looks[kind]].label; }

  /** Lays out lanes: thin if there are many, but tall enough for names for the selected rank. */
  layout() {
    if (hasGroups) layoutGroups(this);
    else this.layoutLanes();
    this.height = Math.min(this.tall, tallest());
    this.scroll = Math.max(0, Math.min(this.scroll, this.tall - this.height));
  }

  /** The lanes that are shown: all but the host lanes of other ranks. */
  get shownLanes() {
    const { hostRank } = this;
    return this.lanes.filter(({ kind, rank }) => kind !== "host" || rank === hostRank);
  }

  /** Lays out all lanes that are shown, one below the other. */
  layoutLanes() {
    const shown = this.shownLanes;
    const thin = Math.max(5, Math.min(28, Math.floor(460 / shown.filter(({ kind }) => kind !== "host").length)));
    this.named = thin >= 11;
    this.gutter = this.named ? Math.min(170, 22 + Math.max(...shown.map((lane) => textWidth(this.laneName(lane), SMALL)))) : 66;
    let y = 0;
    this.rows = shown.map((lane, at) => {
      const before = shown[at - 1];
      if (before && lane.rank !== before.rank && thin > 8) y += 3;
      if (before && lane.rank === before.rank && lane.kind === "host" && lane.label !== before.label) y += 4;
      const height = lane.kind === "host" ? HOST_HEIGHT : lane.rank === state.rank ? Math.max(thin, 22) : thin;
      const row = { lane, y, height };
      y += height;
      return row;
    });
    this.tall = y;
  }

  laneName(lane) { return `rank ${lane.rank} · ${lane.label}`; }

  /** Fits the canvas to the width of its parent, and draws. */
  resize() {
    this.layout();
    this.ratio = devicePixelRatio || 1;
    this.width = this.stage.clientWidth;
    const tall = RULER + this.height + 10;
    Object.assign(this.canvas, { width: Math.round(this.width * this.ratio), height: Math.round(tall * this.ratio) });
    this.canvas.style.height = `${tall}px`;
    this.inner = Math.max(50, this.width - this.gutter - 10);
    this.draw();
  }

  /** Draws on the next frame, once, however many asked. */
  ask() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  /** Handles a change of the page's state. `names`: the names that changed. */
  changed(names) {
    if (["left", "right", "rank"].some((name) => names.includes(name))) this.showRange();
    if (names.includes("rank") || names.includes("host") || regroups(names)) {
      this.layout();
      const row = this.rows.findLast(({ lane }) => (this.chosen ? lane === this.chosen.lane : lane.rank === state.rank));
      if (row && (row.y < this.scroll || row.y + row.height > this.scroll + this.height)) this.scroll = Math.max(0, Math.min(row.y - this.height / 2, this.tall - this.height));
      this.resize();
    } else this.ask();
  }

  /** Whether the slices of each kind match the search text and the selected label. */
  get fits() {
    const asked = `${state.kind}\n${state.q}`;
    if (this.asked !== asked) {
      const text = state.q.toLowerCase();
      this.matching = this.names.map((_, kind) => (!text || this.lower[kind].includes(text)) && (!state.kind || this.labelOf(kind) === state.kind));
      this.asked = asked;
    }
    return this.matching;
  }

  /** Colour, weight and emphasis of each kind, as `paintRow` takes them; with a filter, other kinds are pale. */
  paint() {
    const colours = this.packed.legend.map(({ colour }) => tuned(colour, SLICE_CONTRAST));
    const filtered = Boolean(state.q || state.kind);
    const { fits } = this;
    return this.packed.looks.map((look, kind) => [...colours[look], filtered && !fits[kind] ? 0.015 : 1, filtered && fits[kind]]);
  }

  x(ns) { return this.gutter + ((ns - this.from) / (this.to - this.from)) * this.inner; }
  ns(x) { return this.from + ((x - this.gutter) / this.inner) * (this.to - this.from); }

  /** Draws everything. */
  draw() {
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = ink("--card");
    pen.fillRect(0, 0, this.width, RULER + this.height + 10);
    drawRuler(this, pen);
    pen.save();
    pen.beginPath();
    pen.rect(0, RULER, this.width, this.height);
    pen.clip();
    const seen = this.drawLanes(pen);
    drawPath(this, pen);
    drawRange(this, pen);
    drawMarks(this, pen);
    drawArrows(this, pen);
    pen.restore();
    drawOverview(this, pen);
    if (!performance.getEntriesByName("trainyard-drawn").length) performance.mark("trainyard-drawn");
    this.tell(seen);
  }

  /** Draws the lanes in view: each into a row of pixels, which is stretched to the lane's height. Returns the number of slices in view. */
  drawLanes(pen) {
    const shown = this.rows.filter(({ y, height }) => y + height > this.scroll && y < this.scroll + this.height);
    const wide = Math.round(this.inner * this.ratio);
    Object.assign(this.raster, { width: wide, height: shown.length });
    const soft = this.raster.getContext("2d");
    const image = soft.createImageData(wide, shown.length);
    const sums = new Float32Array(wide * 4);
    const paint = this.paint();
    let seen = 0;
    shown.forEach(({ lane }, at) => {
      seen += paintRow(lane, this.from, this.to, image.data.subarray(at * wide * 4, (at + 1) * wide * 4), sums, paint);
    });
    soft.putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    const snap = (value) => Math.round(value * this.ratio) / this.ratio;
    shown.forEach(({ lane, y, height }, at) => {
      const top = snap(RULER + y - this.scroll);
      if (lane.rank === state.rank) {
        pen.fillStyle = ink("--chosen");
        pen.fillRect(0, top, this.width, height);
      }
      pen.drawImage(this.raster, 0, at, wide, 1, this.gutter, top, this.inner, Math.max(1, height - (height > 12 ? 3 : 1.5)));
      if (height >= 14) drawNames(this, pen, lane, top, height, paint);
    });
    return seen;
  }

  /** Writes the numbers of events and slices below the timeline. `seen`: slices in view. */
  tell(seen) {
    const { events, merged } = this.packed;
    this.facts.textContent = [plural(events, "event"), merged && `${whole(merged)} folded into neighbours`, `${plural(seen, "slice")} in view`, detailNote(this.lanes)].filter(Boolean).join(" · ");
  }

  /** The slice under a point of the canvas, or the nearest within two pixels. */
  at(x, y) {
    const deep = y - RULER + this.scroll;
    const row = y >= RULER && y < RULER + this.height && x >= this.gutter ? this.rows.find((one) => deep >= one.y && deep < one.y + one.height) : null;
    if (!row) return null;
    const slack = (2 * (this.to - this.from)) / this.inner;
    const ns = this.ns(x);
    const index = firstAfter(row.lane, ns - slack);
    const near = [index, index + 1, index + 2].filter((one) => one < row.lane.starts.length && row.lane.starts[one] <= ns + slack);
    if (!near.length) return null;
    const away = (one) => Math.max(0, row.lane.starts[one] - ns, ns - row.lane.ends[one]);
    return { lane: row.lane, index: near.reduce((best, one) => (away(one) < away(best) ? one : best)) };
  }

  /** The lines of a slice's tooltip. */
  about({ lane, index }) {
    const kind = lane.kinds[index];
    const [start, length] = [lane.starts[index], lane.ends[index] - lane.starts[index]];
    return [this.names[kind], `${time(length)} · ${this.labelOf(kind)}`, this.laneName(lane), `starts at ${fixed(start / 1e6, 6)} ms · ${whole(length)} ns`];
  }

  /** Shows [from, to) ns, kept within reason; the whole when there is no more to see. */
  show(from, to) {
    const span = Math.max(50, to - from);
    if (span >= this.length) return this.fit();
    const start = Math.max(0, Math.min((from + to - span) / 2, this.length * 1.012 - span));
    return setState({ from: start, to: start + span });
  }

  fit() { setState({ from: null, to: null }); }
  zoom(factor, about = (this.from + this.to) / 2) { this.show(about - (about - this.from) * factor, about + (this.to - about) * factor); }
  pan(part) { const by = part * (this.to - this.from); this.show(this.from + by, this.to + by); }

  /** Shows the ledger and the names of the selected range. */
  showRange() { showRange(this, this.range); }

  /** The longest slice of a ledger lane with this label, of those that begin in a step if there are any; null if there is none. */
  longest(label) {
    const isInStep = (ns, rank) => this.stepsOf(rank).some(([name, start, stop]) => name.startsWith("step ") && start <= ns && ns < stop);
    return this.longestOf(label, isInStep) ?? this.longestOf(label, () => true);
  }

  /** The longest slice of a ledger lane with this label that satisfies `accepts(its start in ns, its rank)`. */
  longestOf(label, accepts) {
    let best = null;
    for (const lane of this.lanes) {
      if (lane.kind !== "ledger") continue;
      for (let index = 0; index < lane.starts.length; index += 1) {
        const ns = lane.ends[index] - lane.starts[index];
        if ((!best || ns > best.ns) && accepts(lane.starts[index], lane.rank) && this.labelOf(lane.kinds[index]) === label) best = { lane, index, ns };
      }
    }
    return best;
  }

  /** The slice of a rank's ledger lane that covers most of another slice; null if the rank has no such lane or it is empty there. */
  during({ lane: { starts, ends }, index }, rank) {
    const lane = this.lanes.find((other) => other.kind === "ledger" && other.rank === rank);
    let best = null;
    for (let at = lane ? firstAfter(lane, starts[index]) : 0; lane && at < lane.starts.length && lane.starts[at] < ends[index]; at += 1) {
      const ns = Math.min(lane.ends[at], ends[index]) - Math.max(lane.starts[at], starts[index]);
      if (ns > (best?.ns ?? 0)) best = { lane, index: at, ns };
    }
    return best;
  }

  /** The ledger of the view on the selected rank, else on the first. */
  ledgerRows() {
    const ledger = ledgerOf(this, rankOfRange(this), this.from, this.to);
    return [[`account, rank ${rankOfRange(this)}`, "ns"], ...ledger.map(([look, ns]) => [this.packed.legend[look].label, ns])];
  }

  /** Every slice in view, for the CSV. */
  slices() {
    const lines = [["rank", "lane", "name", "kind", "start_ns", "ns"]];
    for (const lane of this.lanes) {
      for (let at = firstAfter(lane, this.from); at < lane.starts.length && lane.starts[at] < this.to; at += 1) {
        const kind = lane.kinds[at];
        lines.push([lane.rank, lane.label, this.names[kind], this.labelOf(kind), lane.starts[at], lane.ends[at] - lane.starts[at]]);
      }
    }
    return lines;
  }

  /** Slices in view, by name, longest first. */
  summary() {
    const { counts, lengths } = totals(this.lanes, this.names.length, this.from, this.to);
    const kinds = [...counts.keys()].filter((kind) => counts[kind]).sort((a, b) => lengths[b] - lengths[a]);
    return [["name", "kind", "count", "ns, all lanes"], ...kinds.slice(0, 200).map((kind) => [this.names[kind], this.labelOf(kind), counts[kind], lengths[kind]])];
  }
}
