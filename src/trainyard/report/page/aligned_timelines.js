// The timelines of the compared runs at one step each, one above the other: the same rank, the same scale, zoomed together.

import { SLICE_CONTRAST } from "./colours.js";
import { attachKeys, attachPointer, choose, helpDialog } from "./controls.js";
import { view } from "./data.js";
import { el } from "./dom.js";
import { redrawn, saveCsv, save, section } from "./export.js";
import { details } from "./frame.js";
import { cutLane } from "./lane_part.js";
import { totals, unpack } from "./lanes.js";
import { KINDS_LABEL, legendKeys } from "./legend.js";
import { time } from "./numbers.js";
import { named } from "./run_badges.js";
import { countMatches, searchField } from "./search.js";
import { setState, state, watch } from "./state.js";
import { cannotUnpack, Line } from "./timeline.js";
import { say } from "./tooltip.js";

const NOT_STEPS = ["before", "window", "after"];

/** Draws the section "Timelines, aligned at a step"; nothing if no run has traces. */
export async function alignedTimelines() {
  const drawn = view.timelines.flatMap((packed, run) => (packed ? [{ packed, run }] : []));
  if (!drawn.length) return;
  const card = section("timelines", "Timelines, aligned at a step", "", {
    nav: "Timelines",
    csv: () => saveCsv("timelines", sliceRows(tracks)),
    png: () => joinCanvases(tracks).toBlob((blob) => save("timelines.png", blob)),
  });
  const keys = ["W", "S", " zoom ", "A", "D", " pan ", "F", " fit ", "/", " search ", "?", " help; all runs move together"];
  card.querySelector(".note").append(el("span", { class: "hint" }, ...keys.map((key) => (key.length === 1 ? el("kbd", {}, key) : key))));
  const missing = view.runs.filter(({ kind }, run) => kind !== "plan" && !view.timelines[run]).map(({ letter, name }) => `${letter} ${name}`);
  if (missing.length) card.append(el("p", { class: "notice" }, `No traces of ${missing.join(", ")}: there is no timeline to compare with.`));
  /** @type {Track[]} */
  const tracks = [];
  const unpacked = await Promise.all(drawn.map(({ packed }) => unpack(packed))).catch(() => null);
  if (!unpacked) {
    card.append(cannotUnpack());
    return;
  }
  drawn.forEach(({ packed, run }, at) => tracks.push(new Track(packed, run, unpacked[at])));
  const describe = () => tracks.map(({ line, run }) => `${view.runs[run].letter} ${countMatches(line, ", ")}`).join(" · ");
  const { field, input, show } = searchField("Search the timelines by name", describe);
  card.append(el("div", { class: "controls" }, legendKeys(usedKinds(tracks), { label: KINDS_LABEL, least: SLICE_CONTRAST }), field), el("div", { class: "choosers" }, rankChooser(tracks), hostButton(tracks)), ...tracks.map((track) => track.element(() => setState({ steps: tracks.map(({ chosen }) => chosen).join(".") }))));
  card.append(details("Time by name in the aligned steps", () => comparedNames(tracks)));
  let shown = alignTracks(tracks);
  attachKeys(tracks.map(({ line }) => line), input, helpDialog());
  show();
  redrawn(card, () => tracks.forEach((track) => track.line.resize()));
  watch((changed) => {
    // A click on a slice selects its rank, too; only another rank or step changes what is shown.
    const [rank, steps] = [selectedRank(tracks), state.steps];
    if (rank !== shown.rank || steps !== shown.steps) shown = alignTracks(tracks);
    else if (changed.some((name) => name !== "theme")) tracks.forEach((track) => track.line.changed(changed.filter((name) => name !== "rank")));
  });
}

/** A timeline whose gutter is as wide as the widest of all tracks, so that equal times are at equal positions. */
class AlignedLine extends Line {
  /** The timelines of the other runs. @type {AlignedLine[]} */
  others = [];
  ownGutter = 0;
  /** The rank whose lanes are shown as those of the selected rank. */
  shownRank = 0;

  laneName(lane) { return `rank ${this.shownRank} · ${lane.label}`; }

  layout() {
    super.layout();
    this.ownGutter = this.gutter;
    this.gutter = Math.max(this.gutter, ...this.others.map((line) => line.ownGutter));
  }
}

/** The timeline of one run, of which one rank and one step are shown. */
class Track {
  /** `run`: its number; `unpacked`: the names and lanes of all ranks. */
  constructor(packed, run, unpacked) {
    this.packed = packed;
    this.run = run;
    this.unpacked = unpacked;
    this.ranks = [...new Set(packed.lanes.map(([rank]) => rank))];
    /** The number of the step that is shown. @type {number | null} */
    this.chosen = null;
  }

  /** The steps of a rank: [label, start, stop] in ns; other parts of the window only if there are no steps. */
  steps(rank) {
    const all = this.unpacked.stepsOfRanks.get(rank) ?? this.packed.steps;
    const steps = all.filter(([label]) => !NOT_STEPS.includes(label));
    return steps.length ? steps : all;
  }

  /** The number of the step that is closest to the mean step in length. */
  typical(rank) {
    const away = ([, start, stop]) => Math.abs(stop - start - view.runs[this.run].wall_ns);
    const steps = this.steps(rank);
    return steps.reduce((best, step, at) => (away(step) < away(steps[best]) ? at : best), 0);
  }

  /** The heading with the choice of the step, which calls `apply()`, the canvas, and a notice for a rank that the run lacks. */
  element(apply) {
    this.chooser = el("select", { "aria-label": `Step of ${view.runs[this.run].name}`, onchange: () => { this.chosen = Number(this.chooser.value); apply(); } });
    this.absent = el("p", { class: "notice", hidden: true });
    this.stage = el("div", { class: "stage" });
    const run = view.runs[this.run].name;
    const picked = el("div", { class: "picked", role: "group", "aria-label": `Selected slice of ${run}`, hidden: true });
    const range = el("div", { class: "range", role: "group", "aria-label": `Selected range of ${run}`, hidden: true });
    this.line = new AlignedLine({ ...this.packed, steps: [] }, this.stage, el("p"), picked, range);
    this.line.canvas.setAttribute("aria-label", `Timeline of ${run} at one step. W and S zoom, A and D pan, the arrow keys select a slice, F fits, slash searches, question mark lists all keys.`);
    return el("div", { class: "track-of-run" }, el("div", { class: "track-head" }, named(this.run), el("label", {}, "step ", this.chooser)), this.absent, this.stage, picked, range);
  }

  /** The rank to show for the selected rank: the same one, else the run's rank closest to it. */
  rankFor(selected) {
    return this.ranks.reduce((best, rank) => (Math.abs(rank - selected) < Math.abs(best - selected) ? rank : best), this.ranks[0]);
  }

  /** Shows a rank at the chosen step, which begins at 0 of the common scale. Returns the length of the step in ns. */
  show(selected) {
    const rank = this.rankFor(selected);
    this.absent.hidden = rank === selected;
    this.absent.textContent = rank === selected ? "" : `${view.runs[this.run].letter} has no rank ${selected}: its rank ${rank} is shown.`;
    const steps = this.steps(rank);
    if (this.chosen === null || this.chosen >= steps.length) this.chosen = this.typical(rank);
    if (this.shown !== rank) {
      this.chooser.replaceChildren(...steps.map(([label, start, stop], at) => el("option", { value: at }, `${label.replace(/^step /, "")} (${time(stop - start)})`)));
      this.shown = rank;
    }
    this.chooser.value = String(this.chosen);
    const [label, start, stop] = steps[this.chosen] ?? ["", 0, 0];
    // They count as lanes of the selected rank, so that a range is summed over them.
    this.lanes = this.unpacked.lanes.filter((lane) => lane.rank === rank).map((lane) => ({ ...cutLane(lane, start, stop), rank: selected }));
    this.line.shownRank = rank;
    this.line.packed = { ...this.packed, steps: [[label, 0, stop - start]], length: stop - start };
    return stop - start;
  }
}

/** The rank that is shown: the selected one if a run has it, else the first. */
function selectedRank(tracks) {
  return tracks.some((track) => track.ranks.includes(state.rank)) ? state.rank : tracks[0].ranks[0];
}

/** Shows the selected rank of all runs at their chosen steps, on the scale of the longest step. Returns what is shown. */
function alignTracks(tracks) {
  const rank = selectedRank(tracks);
  const steps = state.steps.split(".").map(Number);
  tracks.forEach((track, at) => (track.chosen = state.steps ? steps[at] ?? 0 : null));
  const length = Math.max(...tracks.map((track) => track.show(rank)));
  for (const track of tracks) {
    choose(track.line, null);
    track.line.fill({ ...track.unpacked, lanes: track.lanes, stepsOfRanks: new Map() });
    track.line.length = Math.max(1, length);
    track.line.others = tracks.filter((other) => other !== track).map((other) => other.line);
    if (!track.attached) attachPointer(track.line);
    track.attached = true;
  }
  // The gutter of each depends on those of all.
  for (let pass = 0; pass < 2; pass += 1) tracks.forEach((track) => track.line.layout());
  for (const track of tracks) {
    if (track.stage.clientWidth) track.line.resize();
    track.line.showRange();
  }
  return { rank, steps: state.steps };
}

/** The choice of the rank, if a run has several. */
function rankChooser(tracks) {
  const ranks = [...new Set(tracks.flatMap((track) => track.ranks))].sort((a, b) => a - b);
  if (ranks.length < 2) return "";
  const chooser = el("select", { onchange: () => { setState({ rank: Number(chooser.value) }); say(`rank ${chooser.value}`); } }, ...ranks.map((rank) => el("option", { value: rank }, String(rank))));
  const show = () => (chooser.value = String(selectedRank(tracks)));
  watch((changed) => changed.includes("rank") && show());
  show();
  return el("label", {}, "Rank ", chooser);
}

/** The button that shows or hides the lanes of host threads; empty if no run has any. */
function hostButton(tracks) {
  if (!tracks.some(({ unpacked }) => unpacked.lanes.some(({ kind }) => kind === "host"))) return "";
  const button = el("button", { type: "button", class: "more", onclick: () => setState({ host: !state.host }) }, "Host lanes");
  const show = () => button.setAttribute("aria-pressed", String(state.host));
  watch(show);
  show();
  return button;
}

/** The kinds that the slices of any timeline have, each label once. */
function usedKinds(tracks) {
  const entries = tracks.flatMap(({ packed }) => [...new Set(packed.looks)].map((look) => packed.legend[look]));
  return entries.filter(({ label }, at) => entries.findIndex((entry) => entry.label === label) === at);
}

/** The lanes of device work; the only lane of a rank that is summarised. */
const deviceLanes = ({ lanes }) => (lanes.length > 1 ? lanes.filter(({ kind }) => kind === "device") : lanes);

/** Names of device work in the aligned steps with count and ns in each run, the largest change first. */
function comparedNames(tracks) {
  const rows = new Map();
  tracks.forEach(({ line }, at) => {
    const { counts, lengths } = totals(deviceLanes(line), line.names.length, -Infinity, Infinity);
    line.names.forEach((name, kind) => {
      if (!counts[kind]) return;
      const row = rows.get(name) ?? tracks.map(() => [0, 0]);
      row[at] = [row[at][0] + counts[kind], row[at][1] + lengths[kind]];
      rows.set(name, row);
    });
  });
  const swing = (row) => Math.max(...row.slice(1).map(([, ns]) => Math.abs(ns - row[0][1])), 0);
  const heads = ["name", ...tracks.flatMap(({ run }) => [`${view.runs[run].letter} count`, `${view.runs[run].letter} ns`])];
  return [heads, ...[...rows].sort((a, b) => swing(b[1]) - swing(a[1])).slice(0, 200).map(([name, row]) => [name, ...row.flat()])];
}

/** Every slice of the aligned steps, for the CSV. */
function sliceRows(tracks) {
  const rows = [["run", "rank", "lane", "name", "kind", "start_ns", "ns"]];
  for (const { line, run } of tracks) {
    for (const lane of line.lanes) {
      lane.kinds.forEach((kind, at) => rows.push([view.runs[run].name, lane.rank, lane.label, line.names[kind], line.labelOf(kind), lane.starts[at], lane.ends[at] - lane.starts[at]]));
    }
  }
  return rows;
}

/** The canvases of all tracks, one above the other, as one. */
function joinCanvases(tracks) {
  const canvases = tracks.map((track) => track.line.canvas);
  const all = el("canvas", { width: Math.max(...canvases.map(({ width }) => width)), height: canvases.reduce((sum, { height }) => sum + height, 0) });
  const pen = all.getContext("2d");
  canvases.reduce((top, canvas) => {
    pen.drawImage(canvas, 0, top);
    return top + canvas.height;
  }, 0);
  return all;
}
