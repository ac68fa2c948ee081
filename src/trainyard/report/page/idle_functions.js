// Idle time of the device, by the function of the host that covered it.

import { eachStretch, hostThreads, launchingThread } from "./host_stacks.js";
import { firstAfter, stackOf } from "./lanes.js";

const FUNCTION = /\(\d+\): /;
export const LAUNCHED = "work was launched but had not started";
export const NO_SPAN = "outside all recorded spans of the host";

/**
 * The idle time of a rank's device in [from, to) ns: [{name, own, all}], the longest first; empty if the rank has no host lanes. `own` adds up to the
 * idle time. It is the time in a Python function (`file(line): name`) outside its callees that are functions too; outside functions, the time in an
 * innermost span. `all` includes callees. The thread is the one that launches the next work; while it is in no span, the training thread.
 */
export function idleByFunction(line, rank, from, to) {
  const threads = hostThreads(line, rank);
  if (!threads) return [];
  const rows = new Map();
  const add = (name, column, ns) => {
    const row = rows.get(name) ?? { name, own: 0, all: 0 };
    row[column] += ns;
    rows.set(name, row);
  };
  const { nodes, launched } = idleByStack(line, rank, threads, from, to);
  for (const [node, ns] of nodes) {
    const { name, functions } = describeStack(line.stacks, node);
    add(name, "own", ns);
    for (const around of functions) add(around, "all", ns);
  }
  for (const column of launched ? ["own", "all"] : []) add(LAUNCHED, column, launched);
  return [...rows.values()].sort((a, b) => b.own - a.own || b.all - a.all);
}

/** What a stack counts for: {name: its innermost function, else its innermost span; functions: the names of all, and that name}. */
function describeStack(stacks, node) {
  const stack = stackOf(stacks, node);
  const functions = stack.filter((name) => FUNCTION.test(name));
  const name = functions[0] ?? stack[0] ?? NO_SPAN;
  return { name, functions: new Set([name, ...functions]) };
}

/** Idle time in [from, to) as {nodes: stack number (-1: none) -> ns, launched: ns after the launch of the next work}. */
function idleByStack(line, rank, threads, from, to) {
  const nodes = new Map();
  let launched = 0;
  const count = (node, begin, end) => nodes.set(node, (nodes.get(node) ?? 0) + end - begin);
  const main = threads.spans.get(threads.main);
  const ledger = line.lanes.find((lane) => lane.kind === "ledger" && lane.rank === rank);
  for (let at = firstAfter(ledger, from); at < ledger.starts.length && ledger.starts[at] < to; at += 1) {
    const { idle } = line.packed.legend[line.packed.looks[ledger.kinds[at]]];
    const [begin, end] = [Math.max(from, ledger.starts[at]), Math.min(to, ledger.ends[at])];
    if (idle === "launched") launched += end - begin;
    if (idle !== "host") continue;
    const own = threads.spans.get(launchingThread(line, rank, ledger.ends[at])) ?? main;
    eachStretch(own, begin, end, (node, start, stop) => (node < 0 && own !== main ? eachStretch(main, start, stop, count) : count(node, start, stop)));
  }
  return { nodes, launched };
}
