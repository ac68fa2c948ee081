// Idle time by function, against a search at each nanosecond.

import assert from "node:assert/strict";
import { test } from "node:test";

import { idleByFunction, LAUNCHED, NO_SPAN } from "../../../src/trainyard/report/page/idle_functions.js";
import { randomIntegers } from "./random_integers.js";

const LENGTH = 400;
const LOOKS = [{ idle: "" }, { idle: "host" }, { idle: "launched" }];
const NAMES = ["train.py(1): main", "train.py(9): step", "data.py(3): load", "aten::mm", "cudaLaunchKernel", "<built-in function len>"];

/** Nested spans of a thread in [from, to): {name, start, end, depth, parent}, parents first. */
function nestedSpans(below, from, to, depth = 0, parent = null) {
  const spans = [];
  for (let at = from + below(6); at < to && depth < 5; at += below(12)) {
    const end = Math.min(to, at + 1 + below(depth ? 40 : 150));
    const span = { name: NAMES[below(NAMES.length)], start: at, end, depth, parent };
    spans.push(span, ...nestedSpans(below, at, end, depth + 1, span));
    at = end;
  }
  return spans;
}

/** Slices that tile [0, LENGTH) with random looks. */
function tiles(below) {
  const lane = { starts: [], ends: [], kinds: [] };
  for (let at = 0; at < LENGTH; at = lane.ends.at(-1)) {
    lane.starts.push(at);
    lane.ends.push(Math.min(LENGTH, at + 1 + below(40)));
    lane.kinds.push(below(LOOKS.length));
  }
  return lane;
}

/** A timeline of one rank with two host threads, 7 (training) and 9, and the work that they launch; `threads`: number -> its spans. */
function randomLine(seed) {
  const below = randomIntegers(seed);
  const stacks = { names: NAMES, parents: [], spans: [] };
  const threads = new Map([7, 9].map((thread) => [thread, nestedSpans(below, 0, LENGTH)]));
  const lanes = [{ kind: "ledger", rank: 0, details: {}, ...tiles(below) }];
  const launches = [...lanes[0].starts.keys()].map(() => [7, 9, -1][below(3)]);
  // The work that ends each slice of the ledger, one ns long.
  lanes.push({ kind: "device", rank: 0, starts: lanes[0].ends, ends: lanes[0].ends.map((end) => end + 1), details: { thread: launches.map((thread) => thread + 1) } });
  for (const [thread, spans] of threads) {
    for (const span of spans) {
      span.node = stacks.parents.push(span.parent ? span.parent.node : -1) - 1;
      stacks.spans.push(NAMES.indexOf(span.name));
    }
    for (let depth = 0; depth < 5; depth += 1) {
      const own = spans.filter((span) => span.depth === depth);
      lanes.push({ kind: "host", rank: 0, depth, starts: own.map(({ start }) => start), ends: own.map(({ end }) => end), details: { stack: own.map(({ node }) => node + 1), thread: own.map(() => thread + 1) } });
    }
  }
  return { line: { lanes, stacks, packed: { legend: LOOKS, looks: [0, 1, 2] } }, threads, launches };
}

/** The same result by looking at each ns. */
function searched({ line, threads, launches }, from, to) {
  const rows = new Map();
  const add = (name, column) => rows.set(name, { ...{ name, own: 0, all: 0 }, ...rows.get(name), [column]: (rows.get(name)?.[column] ?? 0) + 1 });
  const [ledger] = line.lanes;
  const main = threads.get(7).length ? 7 : 9;
  const openAt = (thread, ns) => (threads.get(thread) ?? []).filter(({ start, end }) => start <= ns && ns < end).sort((a, b) => b.depth - a.depth);
  for (let ns = from; ns < to; ns += 1) {
    const at = ledger.starts.findIndex((start, index) => start <= ns && ns < ledger.ends[index]);
    const { idle } = LOOKS[ledger.kinds[at]];
    if (!idle) continue;
    const own = openAt(threads.get(launches[at])?.length ? launches[at] : main, ns);
    const stack = (own.length ? own : openAt(main, ns)).map(({ name }) => name);
    const functions = stack.filter((name) => name.includes(".py("));
    const name = idle === "launched" ? LAUNCHED : functions[0] ?? stack[0] ?? NO_SPAN;
    add(name, "own");
    for (const around of new Set(idle === "launched" ? [name] : [name, ...functions])) add(around, "all");
  }
  return [...rows.values()].sort((a, b) => a.name.localeCompare(b.name));
}

test("idle time by function equals a search at each nanosecond", () => {
  const names = new Set();
  for (let seed = 1; seed <= 60; seed += 1) {
    const drawn = randomLine(seed * 7919);
    const below = randomIntegers(seed);
    const [from, to] = seed % 3 ? [below(200), 201 + below(199)] : [0, LENGTH];
    const rows = idleByFunction(drawn.line, 0, from, to);
    assert.deepEqual([...rows].sort((a, b) => a.name.localeCompare(b.name)), searched(drawn, from, to), `seed ${seed}`);
    assert.ok(rows.every((row, at) => !at || row.own <= rows[at - 1].own));
    rows.forEach(({ name }) => names.add(name));
  }
  assert.deepEqual(names, new Set([...NAMES, LAUNCHED, NO_SPAN]));
});

test("a rank without host lanes has no table", () => {
  const { line } = randomLine(5);
  assert.deepEqual(idleByFunction({ ...line, lanes: line.lanes.filter(({ kind }) => kind !== "host") }, 0, 0, LENGTH), []);
});
