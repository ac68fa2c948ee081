// What each thread of the host did over time: its innermost span at each instant.

import { firstAfter } from "./lanes.js";

/**
 * The innermost spans of a thread: stretch i is [edges[i], edges[i + 1]) ns with the stack number `nodes[i]`, -1 while no span is open.
 * `lanes`: the thread's lanes from the outermost depth inwards.
 */
export function innermostSpans(lanes) {
  const edges = Float64Array.from(new Set(lanes.flatMap(({ starts, ends }) => [...starts, ...ends]))).sort();
  const nodes = new Int32Array(Math.max(0, edges.length - 1)).fill(-1);
  for (const { starts, ends, details } of lanes) {
    let at = 0;
    starts.forEach((start, index) => {
      while (edges[at] < start) at += 1;
      for (; edges[at] < ends[index]; at += 1) nodes[at] = details.stack[index] - 1;
    });
  }
  return { edges, nodes };
}

/** Calls `add(stack number or -1, begin, end)` for each stretch of [from, to) ns in which a thread is in one innermost span. */
export function eachStretch({ edges, nodes }, from, to, add) {
  let at = firstAfter({ ends: edges }, from) - 1;
  for (let begin = from; begin < to; at += 1) {
    const end = Math.min(to, edges[at + 1] ?? Infinity);
    add(nodes[at] ?? -1, begin, end);
    begin = end;
  }
}

/** The thread that launched the first device work of a rank from `ns` on; null if unknown. */
export function launchingThread(line, rank, ns) {
  let first = null;
  for (const lane of line.lanes) {
    if (lane.rank !== rank || lane.kind !== "device" || !lane.details.thread) continue;
    const index = firstAfter(lane, ns);
    if (index < lane.starts.length && (!first || lane.starts[index] < first.ns)) first = { ns: lane.starts[index], thread: lane.details.thread[index] };
  }
  return first?.thread ? first.thread - 1 : null;
}

const threadsOfLanes = new WeakMap();

/** The threads of a rank: {main: the number of the training thread, spans: thread number -> its innermost spans}; null if the rank has no host lanes. */
export function hostThreads(line, rank) {
  const known = threadsOfLanes.get(line.lanes) ?? new Map();
  threadsOfLanes.set(line.lanes, known);
  if (!known.has(rank)) {
    const lanes = line.lanes.filter((lane) => lane.kind === "host" && lane.rank === rank && lane.starts.length);
    const threadOf = ({ details }) => details.thread[0] - 1;
    const spans = new Map([...new Set(lanes.map(threadOf))].map((thread) => [thread, innermostSpans(lanes.filter((lane) => threadOf(lane) === thread))]));
    known.set(rank, lanes.length ? { main: threadOf(lanes[0]), spans } : null);
  }
  return known.get(rank);
}
