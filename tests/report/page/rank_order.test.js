import assert from "node:assert/strict";
import { test } from "node:test";
import { foldHeat, groupOf, rankItems, rankOrders, readOpen, writeOpen } from "../../../src/trainyard/report/page/rank_order.js";

const GROUPS = {
  similar: [{ label: "late", ranks: [5], typical: 5 }, { label: "typical", ranks: [0, 1, 2, 3, 4], typical: 2 }],
  hosts: [],
  stages: [{ label: "stage 0", ranks: [0, 1, 2], typical: 1 }, { label: "stage 1", ranks: [3, 4, 5], typical: 4 }],
  latest: [5, 1],
};
const RANKS = [0, 1, 2, 3, 4, 5];
const HEAT = {
  accounts: ["compute/matmul", "comm/all_reduce"],
  labels: ["Matmul", "All-reduce"],
  ranks: RANKS,
  nodes: ["a", "a", "a", "b", "b", "b"],
  values: [[10, 10, 10, 10, 10, 40], [5, 5, 5, 5, 5, 2]],
  deviations: [[0, 0, 0, 0, 0, 30], [0, 0, 0, 0, 0, -3]],
  blamed: 5,
};

test("orders without groups are left out", () => {
  const orders = rankOrders(GROUPS, RANKS);
  assert.deepEqual(Object.keys(orders), ["similar", "stage", "late", "rank"]);
  assert.deepEqual(orders.late.ranks, [5, 1, 0, 2, 3, 4]);
});

test("closed groups are one row, open ones are followed by their ranks", () => {
  const { similar } = rankOrders(GROUPS, RANKS);
  assert.deepEqual(rankItems(similar, new Set(), null).map(({ rank }) => rank), [5, 2]);
  assert.deepEqual(rankItems(similar, new Set([1]), null).map(({ rank }) => rank), [5, 2, 0, 1, 2, 3, 4]);
  assert.deepEqual(rankItems(similar, new Set(), 3).map(({ rank }) => rank), [5, 2, 3]);
  assert.deepEqual(rankItems(similar, new Set([0]), 5).map(({ rank }) => rank), [5, 2], "a single rank is its own row");
});

test("a rank's group is found", () => {
  const { similar, late } = rankOrders(GROUPS, RANKS);
  assert.equal(groupOf(similar, 3), 1);
  assert.equal(groupOf(late, 3), -1);
});

test("open groups survive the address", () => {
  assert.deepEqual(readOpen(writeOpen(new Set([7, 3]))), new Set([3, 7]));
  assert.deepEqual(readOpen("x"), new Set());
});

test("a folded heat map has the means of closed groups and single ranks of open ones", () => {
  const { similar } = rankOrders(GROUPS, RANKS);
  const closed = foldHeat(HEAT, rankItems(similar, new Set(), null), 100);
  assert.deepEqual(closed.values, [[40, 10], [2, 5]]);
  assert.deepEqual(closed.deviations, [[30, 0], [-3, 0]]);
  assert.deepEqual(closed.marks, ["", "×5"]);
  assert.deepEqual(closed.nodes, ["b", ""]);
  const open = foldHeat(HEAT, rankItems(similar, new Set([1]), null), 100);
  assert.deepEqual(open.ranks, [5, 0, 1, 2, 3, 4]);
});

test("more ranks than columns show the most deviating one of each column", () => {
  const { rank } = rankOrders(GROUPS, RANKS);
  const folded = foldHeat(HEAT, rankItems(rank, new Set(), null), 3);
  assert.deepEqual(folded.ranks, [0, 2, 4]);
  assert.deepEqual(folded.deviations, [[0, 0, 30], [0, 0, -3]]);
  assert.equal(folded.titles.length, 3);
});
