// The selected slice of the timeline: what ran, what launched it, how it is booked, and the other members of a collective.

import { el } from "./dom.js";
import { launchingThread } from "./host_stacks.js";
import { firstAfter, stackOf } from "./lanes.js";
import { fixed, plural, share, size, time, whole } from "./numbers.js";

const MOST_FRAMES = 40;
const LEAST_SHARE = 0.1;

/** A detail of a slice; null if it is unknown. */
const detail = ({ lane, index }, column) => {
  const value = lane.details[column]?.[index] ?? 0;
  return value > 0 ? value - 1 : null;
};

/**
 * The members of a slice's collective by arrival: {lane, index, arrival}; empty if it is not in a collective that is known on several ranks.
 * `index` is the slice of the collective itself, `arrival` the start of the wait before it, or its own start without one, in ns.
 */
export function members(line, slice) {
  const number = slice && detail(slice, "collective");
  if (number === null || number === undefined) return [];
  const list = [];
  for (const lane of line.lanes) {
    const column = lane.details.collective;
    if (!column || lane.kind !== "device") continue;
    const first = column.indexOf(number + 1);
    if (first >= 0) list.push({ lane, index: column.lastIndexOf(number + 1), arrival: lane.starts[first] });
  }
  return list.length > 1 ? list.sort((a, b) => a.arrival - b.arrival) : [];
}

/** The host slice that launched a slice of device work: the innermost one of that thread at the time of the launch; null if unknown. */
export function launcher(line, slice) {
  const [since, thread] = [detail(slice, "launch"), detail(slice, "thread")];
  if (since === null || thread === null) return null;
  const ns = slice.lane.starts[slice.index] - since;
  let innermost = null;
  for (const lane of line.lanes) {
    if (lane.kind !== "host" || lane.rank !== slice.lane.rank || lane.details.thread?.[0] !== thread + 1) continue;
    const index = firstAfter(lane, ns);
    if (index < lane.starts.length && lane.starts[index] <= ns && (!innermost || lane.depth > innermost.lane.depth)) innermost = { lane, index };
  }
  return innermost && { ...innermost, ns };
}

/** The rows of the panel: [term, value], in the order in which they are shown. */
function describe(line, slice) {
  const { lane, index } = slice;
  const [start, ns] = [lane.starts[index], lane.ends[index] - lane.starts[index]];
  const label = line.labelOf(lane.kinds[index]);
  const rows = [[lane.kind === "host" ? "Kind" : "Account", label], ["Time", `${time(ns, 5)} (${whole(ns)} ns)`], ["Start", `${fixed(start / 1e6, 6)} ms`], ["Lane", line.laneName(lane)]];
  const { means } = line.packed.legend[line.packed.looks[lane.kinds[index]]];
  if (means) rows.splice(1, 0, ["Meaning", means]);
  const step = line.stepsOf(lane.rank).find(([, from, to]) => from <= start && start < to);
  if (step) rows.push(["Step", step[0]]);
  rows.push(...booking(slice, ns), ...arithmetic(slice, ns));
  const phase = detail(slice, "phase");
  if (phase !== null) rows.push(["Phase", line.packed.phases[phase]]);
  const shape = detail(slice, "shape");
  if (shape !== null) rows.push(["Operands", line.shapes[shape]]);
  const since = detail(slice, "launch");
  if (since !== null) rows.push(["Launched", `${time(since)} before it started`]);
  return rows;
}

/** How much of the slice's time its account owns, and why. */
function booking(slice, ns) {
  const hidden = detail(slice, "hidden");
  if (hidden === null) return [];
  if (hidden === 0) return [["Booked", "all of it: nothing with higher precedence ran at the same time"]];
  return [["Booked", `${time(Math.max(0, ns - hidden))}; ${time(Math.min(hidden, ns))} (${share(Math.min(hidden, ns), ns)}) is hidden behind work with higher precedence`]];
}

/** FLOPs and bytes, the rates that they give, and the least time that the device needs for them. */
function arithmetic(slice, ns) {
  const [flops, bytes, least] = ["flops", "bytes", "least"].map((column) => detail(slice, column));
  const rows = [];
  if (flops) rows.push(["FLOPs", `${fixed(flops / 1e9, 3)} GFLOP, ${fixed(flops / ns / 1e3, 1)} TFLOP/s`]);
  if (bytes) rows.push(["Bytes", `${size(bytes)}, ${fixed(bytes / ns, 1)} GB/s`]);
  if (flops && bytes) rows.push(["Intensity", `${fixed(flops / bytes, 1)} FLOP/byte`]);
  if (least) rows.push(["Roofline", `at least ${time(least)} on this device: it runs at ${share(least, ns)} of the roofline`]);
  return rows;
}

/** Fills the panel below the timeline for a slice; empties it for null. `select(slice)` selects another slice. */
export function showSelection(line, panel, slice, select) {
  panel.replaceChildren();
  panel.hidden = !slice;
  if (!slice) return;
  const rows = describe(line, slice);
  panel.append(el("code", { class: "name" }, line.names[slice.lane.kinds[slice.index]]),
    el("dl", {}, ...rows.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value)))));
  const columns = [hostList(line, slice), stackList(line, slice), launchButton(line, slice, select), memberTable(line, slice, select)].filter(Boolean);
  if (columns.length) panel.append(el("div", { class: "columns" }, ...columns));
}

/**
 * What the host did during a slice of the ledger: [{name, share, depth}], outermost first; at each depth the name with the largest share of the time.
 * The thread is the one that launched the next work of the rank, else the training thread; depths that cover little of the time are left out.
 */
function hostDuring(line, { lane, index }) {
  const [start, end] = [lane.starts[index], lane.ends[index]];
  const hosts = line.lanes.filter(({ kind, rank }) => kind === "host" && rank === lane.rank);
  const thread = launchingThread(line, lane.rank, end) ?? hosts[0]?.details.thread[0] - 1;
  const rows = hosts.filter(({ details }) => details.thread[0] - 1 === thread).map((host) => {
    const sums = new Map();
    for (let at = firstAfter(host, start); at < host.starts.length && host.starts[at] < end; at += 1) {
      const ns = Math.min(end, host.ends[at]) - Math.max(start, host.starts[at]);
      sums.set(host.kinds[at], (sums.get(host.kinds[at]) ?? 0) + ns);
    }
    const [kind, ns] = [...sums].reduce((best, entry) => (entry[1] > best[1] ? entry : best), [-1, 0]);
    return { name: line.names[kind], share: ns / (end - start), depth: host.depth };
  });
  return rows.filter((row) => row.share >= LEAST_SHARE);
}

/** The spans of the host during idle time, with their shares of it. */
function hostList(line, slice) {
  const label = line.labelOf(slice.lane.kinds[slice.index]);
  if (slice.lane.kind !== "ledger" || isDeviceWork(line, slice, label)) return null;
  const rows = hostDuring(line, slice);
  if (!rows.length) return null;
  return el("div", { class: "stack" }, el("h3", {}, "The host meanwhile, outermost first"), el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Span"), el("th", { scope: "col", class: "number" }, "Share of the time"))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, el("th", { scope: "row", class: "cut", title: row.name }, el("code", {}, row.name)), el("td", { class: "number" }, share(row.share, 1)))))));
}

/** Whether device work with this label runs in the middle of a ledger slice. */
function isDeviceWork(line, { lane, index }, label) {
  const middle = (lane.starts[index] + lane.ends[index]) / 2;
  return line.lanes.some((other) => {
    if (other.kind !== "device" || other.rank !== lane.rank) return false;
    const at = firstAfter(other, middle);
    return at < other.starts.length && other.starts[at] <= middle && line.labelOf(other.kinds[at]) === label && Boolean(other.details.launch?.[at]);
  });
}

/** The stack as a list, innermost span first. */
function stackList(line, slice) {
  const node = detail(slice, "stack");
  if (node === null) return null;
  const stack = stackOf(line.stacks, node);
  const shown = stack.slice(0, MOST_FRAMES).map((name) => el("li", {}, el("code", {}, name)));
  const rest = stack.length > MOST_FRAMES ? [el("li", {}, `and ${plural(stack.length - MOST_FRAMES, "outer span")}`)] : [];
  return el("div", { class: "stack" }, el("h3", {}, "Stack, innermost first"), el("ol", {}, ...shown, ...rest));
}

/** A button that selects the host call which launched the slice. */
function launchButton(line, slice, select) {
  const call = launcher(line, slice);
  if (!call) return null;
  return el("div", {}, el("h3", {}, "Launched by"), el("button", { type: "button", class: "take", onclick: () => select(call) }, line.names[call.lane.kinds[call.index]]));
}

/** The members of a collective by arrival, each with a button that selects it. */
function memberTable(line, slice, select) {
  const list = members(line, slice);
  if (!list.length) return null;
  const [first, last] = [list[0].arrival, list.at(-1).arrival];
  const rows = list.map((member) => {
    const { lane, index, arrival } = member;
    return el("tr", { class: lane === slice.lane ? "chosen" : null },
      el("th", { scope: "row" }, el("button", { type: "button", class: "take", onclick: () => select(member) }, `rank ${lane.rank}`)),
      el("td", { class: "number" }, `+${time(arrival - first)}`), el("td", { class: "number" }, time(last - arrival)), el("td", { class: "number" }, time(lane.ends[index] - last)));
  });
  const title = line.packed.aligned === "no" ? `Collective on ${plural(list.length, "rank")}; their clocks are not aligned` : `Collective on ${plural(list.length, "rank")}; rank ${list.at(-1).lane.rank} arrives last`;
  return el("div", {}, el("h3", {}, title), el("table", {},
    el("thead", {}, el("tr", {}, ...["Rank", "Arrives", "Waits for the last", "Then takes"].map((head, at) => el("th", { scope: "col", class: at ? "number" : null }, head)))), el("tbody", {}, ...rows)));
}
