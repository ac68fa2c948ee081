// Slices of the timeline: packed and unpacked, summed and painted.

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { firstAfter, paintRow, readVarints, stackOf, totals, unpack } from "../../../src/trainyard/report/page/lanes.js";
import { randomIntegers } from "./random_integers.js";

/** A lane of `count` slices of random lengths and gaps, some of them zero. */
function randomLane(count, kinds, seed) {
  const below = randomIntegers(seed);
  const lane = { rank: 0, label: "stream", starts: new Float64Array(count), ends: new Float64Array(count), kinds: new Uint32Array(count) };
  let clock = 0;
  for (let at = 0; at < count; at += 1) {
    lane.starts[at] = clock += below(3) * below(50);
    lane.ends[at] = clock += 1 + below(200);
    lane.kinds[at] = below(kinds);
  }
  return lane;
}

const varint = (value) => {
  const bytes = [];
  let rest = value;
  while (rest > 127) {
    bytes.push((rest % 128) | 128);
    rest = Math.floor(rest / 128);
  }
  return [...bytes, rest];
};

test("varints beyond 2^32 are exact", () => {
  const values = [0, 127, 128, 2 ** 32, 2 ** 32 + 1, 2 ** 50 + 3];
  const from = { at: 0 };
  assert.deepEqual([...readVarints(Uint8Array.from(values.flatMap(varint)), from, values.length)], values);
  assert.equal(from.at, values.flatMap(varint).length);
});

test("lanes and their details are unpacked exactly", async () => {
  const lanes = [randomLane(50, 4, 11), randomLane(1, 4, 12), randomLane(0, 4, 13)];
  const column = (of) => lanes.flatMap((lane) => [...lane.starts.keys()].map((at) => of(lane, at)));
  const gaps = column((lane, at) => lane.starts[at] - (at ? lane.ends[at - 1] : 0));
  const lengths = column((lane, at) => lane.ends[at] - lane.starts[at]);
  const kinds = column((lane, at) => lane.kinds[at]);
  const phases = Array.from({ length: 50 }, (_, at) => at % 3);
  const base64 = (bytes) => deflateSync(Uint8Array.from(bytes)).toString("base64");
  const json = (value) => base64(new TextEncoder().encode(JSON.stringify(value)));
  const unpacked = await unpack({
    lanes: lanes.map((lane, at) => [at, lane.label, lane.starts.length, "device", 0, at === 0 ? [1] : []]),
    slices: base64([...gaps, ...lengths, ...kinds].flatMap(varint)),
    columns: ["stack", "phase"],
    details: base64(phases.flatMap(varint)),
    names: json(["a", "b", "c", "d"]),
    stacks: json([["step", "mm"], [-1, 0], [0, 1]]),
    shapes: json(["[2, 3]"]),
    steps_of_ranks: json([[["step 1", 0, 5], ["step 2", 5, 9]], { 1: [0], 12: [0, 1] }]),
  });
  assert.deepEqual(unpacked.names, ["a", "b", "c", "d"]);
  unpacked.lanes.forEach((lane, at) => {
    assert.deepEqual([...lane.starts], [...lanes[at].starts]);
    assert.deepEqual([...lane.ends], [...lanes[at].ends]);
    assert.deepEqual([...lane.kinds], [...lanes[at].kinds]);
  });
  assert.deepEqual([...unpacked.lanes[0].details.phase], phases);
  assert.deepEqual(unpacked.lanes[1].details, {});
  assert.deepEqual([...unpacked.stepsOfRanks], [[1, [["step 1", 0, 5]]], [12, [["step 1", 0, 5], ["step 2", 5, 9]]]]);
  assert.deepEqual(stackOf(unpacked.stacks, 1), ["mm", "step"]);
  assert.deepEqual(stackOf(unpacked.stacks, -1), []);
});

test("the binary search equals a linear one", () => {
  const lane = randomLane(200, 3, 5);
  for (let ns = -10; ns < lane.ends.at(-1) + 10; ns += 7) {
    const expected = lane.ends.findIndex((end) => end > ns);
    assert.equal(firstAfter(lane, ns), expected < 0 ? lane.ends.length : expected);
  }
});

test("totals of adjacent ranges add up to the time of their union", () => {
  const lane = randomLane(300, 5, 3);
  const end = lane.ends.at(-1);
  const all = totals([lane], 5, 0, end).lengths;
  const sum = new Float64Array(5);
  const cuts = [0, 13, 1000, 1001, end / 3, end / 2, end];
  cuts.slice(1).forEach((to, at) => totals([lane], 5, cuts[at], to).lengths.forEach((ns, kind) => (sum[kind] += ns)));
  all.forEach((ns, kind) => assert.ok(Math.abs(ns - sum[kind]) < 1e-6));
  assert.equal(totals([lane], 5, 0, end).counts.reduce((a, b) => a + b), 300);
});

test("a painted row shows the occupancy of each pixel", () => {
  const lane = { starts: [0, 50], ends: [10, 100], kinds: [0, 1] };
  const paint = [[200, 0, 0, 1, false], [0, 200, 0, 1, false]];
  const row = new Uint8ClampedArray(4 * 4);
  const seen = paintRow(lane, 0, 100, row, new Float32Array(4 * 4), paint);
  assert.equal(seen, 2);
  assert.deepEqual([...row.slice(0, 3)], [200, 0, 0]);
  assert.ok(row[3] > 0 && row[3] < 255);
  assert.equal(row[7], 0);
  assert.deepEqual([...row.slice(8, 12)], [0, 200, 0, 255]);
});
