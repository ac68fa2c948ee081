// The order and the groups in which many ranks are drawn. Pure: ranks are numbers, groups {label, ranks, typical}.

/**
 * The orders that the page offers, by name: {label, groups}. Orders without groups list ranks one by one.
 * `groups`: {similar, hosts, stages, latest} as stored in the page; `ranks`: all rank numbers, ascending.
 */
export function rankOrders(groups, ranks) {
  const late = new Set(groups.latest);
  const orders = {
    similar: { label: "similar steps", groups: groups.similar },
    host: { label: "node", groups: groups.hosts },
    stage: { label: "pipeline stage", groups: groups.stages },
    late: { label: "lateness", ranks: [...groups.latest, ...ranks.filter((rank) => !late.has(rank))] },
    rank: { label: "rank", ranks },
  };
  return Object.fromEntries(Object.entries(orders).filter(([, { groups: own }]) => !own || own.length));
}

/**
 * The rows (or columns) of an order: {rank} for a rank; {rank, group, members, open} for a group, drawn as its typical
 * rank, which the rows of its ranks follow if it is open. The selected rank has a row of its own in any case, unless it is
 * its group's only rank.
 * `open`: the numbers of open groups.
 */
export function rankItems(order, open, selected) {
  if (order.ranks) return order.ranks.map((rank) => ({ rank }));
  return order.groups.flatMap(({ ranks, typical, label }, group) => {
    const head = { rank: typical, group, label, members: ranks, open: open.has(group) && ranks.length > 1 };
    if (ranks.length === 1) return [head];
    const shown = head.open ? ranks : ranks.filter((rank) => rank === selected);
    return [head, ...shown.map((rank) => ({ rank }))];
  });
}

/** The number of the group that has a rank; -1 if the order has no groups. */
export function groupOf(order, rank) {
  return order.groups?.findIndex(({ ranks }) => ranks.includes(rank)) ?? -1;
}

/** `3,7` as a set of numbers, and back. */
export const readOpen = (text) => new Set((text.match(/\d+/g) ?? []).map(Number));
export const writeOpen = (open) => [...open].sort((a, b) => a - b).join(",");

/**
 * A heat map with a column for each item, in the form of `heat`: closed groups have the means of their ranks. If there
 * are more than `most` columns, neighbouring ranks share one, which shows the rank that deviates most in each account.
 * `titles`: of each column; `marks`: short titles above the columns, empty for columns of one rank.
 */
export function foldHeat(heat, items, most) {
  const position = new Map(heat.ranks.map((rank, column) => [rank, column]));
  const shown = items.filter(({ members, open }) => !(members && open));
  const size = Math.ceil(shown.length / most);
  const columns = [];
  for (let first = 0; first < shown.length; first += size) columns.push(foldColumn(shown.slice(first, first + size), position));
  const rows = (pick) => heat.accounts.map((_, row) => columns.map((column) => pick(row, column)));
  const mean = (values, members) => Math.round(members.reduce((sum, at) => sum + values[at], 0) / members.length);
  const most_deviating = (row, members) => members.reduce((best, at) => (Math.abs(heat.deviations[row][at]) > Math.abs(heat.deviations[row][best]) ? at : best));
  const cell = (table) => rows((row, { members, isGroup }) => (isGroup ? mean(table[row], members) : table[row][most_deviating(row, members)]));
  return {
    accounts: heat.accounts,
    labels: heat.labels,
    blamed: heat.blamed,
    ranks: columns.map(({ rank }) => rank),
    nodes: columns.map(({ members }) => sameOrEmpty(members.map((at) => heat.nodes[at]))),
    titles: columns.map(({ title }) => title),
    marks: columns.map(({ mark }) => mark),
    values: cell(heat.values),
    deviations: cell(heat.deviations),
  };
}

/** A column of items, which are one closed group, one rank, or several in a row. `position`: of each rank in the heat map. */
function foldColumn(items, position) {
  const [first] = items;
  const at = (ranks) => ranks.map((rank) => position.get(rank)).filter((column) => column !== undefined);
  if (items.length === 1 && first.members) {
    const count = first.members.length;
    return { rank: first.rank, members: at(first.members), isGroup: true, title: `${count} ${count === 1 ? "rank" : "ranks"} · ${first.label}`, mark: count === 1 ? "" : `×${count}` };
  }
  const ranks = items.flatMap(({ rank, members }) => members ?? [rank]);
  const title = ranks.length === 1 ? `rank ${ranks[0]}` : `${ranks.length} ranks, ${ranks[0]} to ${ranks.at(-1)}: the most deviating one`;
  return { rank: ranks[0], members: at(ranks), isGroup: false, title, mark: "" };
}

const sameOrEmpty = (texts) => (texts.every((text) => text === texts[0]) ? texts[0] : "");
