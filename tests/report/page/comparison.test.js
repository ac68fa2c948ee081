// Tests of the page that compares runs, as far as it needs no document.

import assert from "node:assert/strict";
import { test } from "node:test";

import { cutLane } from "../../../src/trainyard/report/page/lane_part.js";
import { treeOf } from "../../../src/trainyard/report/page/operation_nodes.js";
import { differingPart } from "../../../src/trainyard/report/page/text_difference.js";

const change = (path, before, after, match = "same") => ({ path, match, before_ns: before, after_ns: after, ns: after - before });

test("nodes add up to their changes, the largest first", () => {
  const roots = treeOf([change(["forward", "mlp", "mm"], 10, 30), change(["forward", "mlp", "gelu"], 5, 4), change(["backward"], 100, 50), change(["forward", "norm"], 1, 2)]);
  assert.deepEqual(roots.map(({ label, ns }) => [label, ns]), [["backward", [100, 50, -50]], ["forward", [16, 36, 20]]]);
  assert.deepEqual(roots[1].children.map(({ label, ns }) => [label, ns]), [["mlp", [15, 34, 19]], ["norm", [1, 2, 1]]]);
});

test("a change with changes below it counts its own time too", () => {
  const [root] = treeOf([change(["a"], 1, 2), change(["a", "b"], 10, 20)]);
  assert.deepEqual([root.label, root.ns, root.children[0].label], ["a", [11, 22, 11], "b"]);
});

test("chains without changes of their own are one node", () => {
  const [root] = treeOf([change(["a", "b", "c"], 1, 2)]);
  assert.deepEqual([root.label, root.children], ["a / b / c", []]);
});

test("two changes of one path are two nodes", () => {
  const [root] = treeOf([change(["a"], 10, 0, "removed"), change(["a"], 0, 30, "added")]);
  assert.deepEqual(root.ns, [10, 30, 20]);
  assert.equal(root.children.length, 1);
});

test("the differing part lies between the longest common ends", () => {
  assert.deepEqual(differingPart("2.13.1+cu128", "2.13.0+cu128"), ["2.13.", "1", "+cu128"]);
  assert.deepEqual(differingPart("aaa", "aa"), ["aa", "a", ""]);
  assert.deepEqual(differingPart("same", "same"), ["same", "", ""]);
  assert.deepEqual(differingPart("", "abc"), ["", "", ""]);
});

test("a part of a lane has the columns of its slices only", () => {
  const lane = { rank: 1, label: "stream 7", starts: Float64Array.of(0, 10, 20, 30), ends: Float64Array.of(9, 15, 28, 31), kinds: Uint32Array.of(1, 2, 3, 4), details: { bytes: [5, 6, 7, 8] } };
  const part = cutLane(lane, 12, 30);
  assert.deepEqual([[...part.starts], [...part.ends], [...part.kinds], part.details.bytes], [[0, 8], [3, 16], [2, 3], [6, 7]]);
  assert.deepEqual([part.rank, part.label], [1, "stream 7"]);
  assert.equal(cutLane(lane, 100, 200).starts.length, 0);
});
