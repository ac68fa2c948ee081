// The critical path as shapes and sums, against a search.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pathRows, shapePath } from "../../../src/trainyard/report/page/path_segments.js";
import { randomIntegers } from "./random_integers.js";

const ROWS = [{ y: 0 }, { y: 10 }, { y: 20 }];
const rowOf = (number) => ROWS[number] ?? null;
const isWait = (share) => share === 2;

/** A path of `count` segments in random lanes (-1: none) and shares; some do not adjoin. */
function randomPath(count, seed) {
  const below = randomIntegers(seed);
  const path = { starts: [], ends: [], lanes: [], kinds: [] };
  let clock = 0;
  for (let at = 0; at < count; at += 1) {
    clock += below(10) ? 0 : below(30);
    path.starts.push(clock);
    path.ends.push((clock += 1 + below(40)));
    path.lanes.push(below(4) - 1);
    path.kinds.push(below(3));
  }
  return path;
}

test("shapes cover the time of the segments of each row, and nothing else", () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const path = randomPath(120, seed * 7919);
    const [from, to] = [200, path.ends.at(-1) - 150];
    // Two px per ns: gaps and lengths of one ns can be seen.
    const shapes = shapePath(path, from, to, (ns) => 2 * (ns - from), rowOf, isWait);
    for (const [list, waits] of [[shapes.boxes, false], [shapes.waits, true]]) {
      const drawn = new Set(list.flatMap(({ row, left, right }) => Array.from({ length: right - left }, (_, px) => `${row.y} ${left + px}`)));
      assert.equal(drawn.size, list.reduce((sum, { left, right }) => sum + right - left, 0), "shapes do not overlap");
      const expected = new Set();
      path.starts.forEach((start, at) => {
        if (path.lanes[at] < 0 || isWait(path.kinds[at]) !== waits) return;
        for (let ns = Math.max(from, start); ns < Math.min(to, path.ends[at]); ns += 1) for (const px of [0, 1]) expected.add(`${ROWS[path.lanes[at]].y} ${2 * (ns - from) + px}`);
      });
      assert.deepEqual([...drawn].sort(), [...expected].sort());
    }
    const changes = path.starts.filter((start, at) => at && start === path.ends[at - 1] && path.lanes[at] >= 0 && path.lanes[at - 1] >= 0 && path.lanes[at] !== path.lanes[at - 1] && path.ends[at - 1] > from && start < to);
    assert.deepEqual(shapes.links.map(([left]) => left / 2 + from), changes);
    for (const [left, before, right, row] of shapes.links) assert.ok(left === right && before !== row);
  }
});

test("a path of any length gives a bounded number of shapes", () => {
  const path = randomPath(20_000, 3);
  const width = 500;
  const { boxes, waits, links } = shapePath(path, 0, path.ends.at(-1), (ns) => (ns / path.ends.at(-1)) * width, rowOf, isWait);
  assert.ok(boxes.length + waits.length <= 6 * width, `${boxes.length} ${waits.length}`);
  assert.ok(links.length <= 6 * width);
});

test("accounts of the path and of the ledger are in one table, and add up", () => {
  const shares = [["compute/matmul", "Matmul", "device", 300], ["compute/matmul", "Matmul", "host", 60], ["", "", "latency", 30], ["", "", "unexplained", 10]];
  const table = [["compute/matmul", "Matmul", "forward", 90, 0, 1], ["compute/matmul", "Matmul", "backward", 20, 0, 1], ["comm/all_reduce", "All-reduce", "other", 70, 0, 1]];
  const rows = pathRows({ shares, steps: 2 }, table, [7, 3, 2, 1]);
  assert.deepEqual(rows.map(({ label, path, ledger, range }) => [label, path, ledger, range]), [
    ["Matmul", 180, 110, 10], ["Launch latency", 15, 0, 2], ["Delays without a recorded cause", 5, 0, 1], ["All-reduce", 0, 70, 0],
  ]);
  assert.deepEqual(rows[0].resources, ["device", "host"]);
});
