// The grid of replays: which predicted step belongs to the positions of the sliders. Without elements, so that node tests it.

/**
 * A lever as the page has it: `speeds` are the factors of its settings, 1 first; [1, 0] for a switch, whose change may have a
 * `value`. `includes` is the key of a lever whose change is a part of this one.
 * @typedef {{key: string, speeds: number[], value: string, unavailable: string, includes: string}} Lever
 */

/** @param {Lever} lever */
export const isSwitch = (lever) => lever.speeds[1] === 0;

/** The change of a lever at a speed, as `trainyard trace what-if` takes it; empty for the measured step. */
export function changeOf(lever, speed) {
  if (speed === 1) return "";
  if (isSwitch(lever)) return lever.value ? `${lever.key}=${lever.value}` : lever.key;
  return `${lever.key}=${Number(speed.toFixed(2))}x`;
}

/** The changes of all levers, in the order in which a grid point was replayed: switches first, as `order` has them. */
export function changesOf(section, speeds) {
  const changes = section.levers.map((lever, at) => changeOf(lever, speeds[at])).filter(Boolean);
  const place = (change) => section.order.indexOf(change.split("=")[0]);
  return changes.sort((one, other) => place(one) - place(other));
}

/** The speeds that a text such as `no-stragglers,network=2x` describes; unknown and unavailable levers stay as measured. */
export function speedsOf(section, text) {
  const values = new Map(String(text).split(",").map((change) => [change.split("=")[0], Number(change.split("=")[1]?.replace(/x$/, ""))]));
  return section.levers.map((lever) => {
    if (lever.unavailable || !values.has(lever.key)) return 1;
    if (isSwitch(lever)) return 0;
    const speed = values.get(lever.key);
    return speed >= 1 && speed <= Math.max(...replayedSpeeds(section, lever)) ? speed : 1;
  });
}

/** The speeds of a lever at which any point was replayed, and 1. */
export function replayedSpeeds(section, lever) {
  const at = section.levers.indexOf(lever);
  const used = new Set([0, ...section.points.map(({ settings }) => settings[at])]);
  return lever.speeds.filter((_, setting) => used.has(setting));
}

/** The replayed point with these settings; null if there is none. The measured step is the point without changes. */
function pointAt(section, settings) {
  if (settings.every((setting) => setting === 0)) {
    return { settings, changes: [], wall_ns: section.wall_ns, recovered_ns: 0, interval_ns: [0, 0], ns: section.ns };
  }
  return section.points.find((point) => point.settings.every((setting, at) => setting === settings[at])) ?? null;
}

/**
 * The predicted step at these speeds: a replayed point (`how`: replayed), the measured step (measured), a value between
 * two replayed points that differ in one lever (interpolated, without an interval), or none (missing).
 *
 * Between two points every account is interpolated linearly in the time that the changed work takes, 1 / speed. `ns` is
 * null for points whose ledger was not booked.
 */
export function stepAt(section, speeds) {
  const exact = section.levers.map((lever, at) => lever.speeds.indexOf(speeds[at]));
  const between = exact.flatMap((setting, at) => (setting < 0 ? [at] : []));
  if (!between.length) {
    const point = pointAt(section, exact);
    return point ? { ...point, how: point.changes.length ? "replayed" : "measured" } : { how: "missing" };
  }
  const [lever] = between;
  const available = replayedSpeeds(section, section.levers[lever]).sort((a, b) => a - b);
  const above = available.find((speed) => speed > speeds[lever]);
  const below = available.filter((speed) => speed < speeds[lever]).at(-1);
  if (between.length > 1 || above === undefined || below === undefined) return { how: "missing" };
  const [low, high] = [below, above].map((speed) => pointAt(section, exact.map((setting, at) => (at === lever ? section.levers[lever].speeds.indexOf(speed) : setting))));
  if (!low || !high) return { how: "missing" };
  const part = (1 / below - 1 / speeds[lever]) / (1 / below - 1 / above);
  const ns = low.ns && high.ns ? low.ns.map((value, at) => Math.round(value + (high.ns[at] - value) * part)) : null;
  const wall_ns = ns ? ns.reduce((sum, value) => sum + value, 0) : Math.round(low.wall_ns + (high.wall_ns - low.wall_ns) * part);
  return { how: "interpolated", between: [below, above], lever, ns, wall_ns, recovered_ns: section.wall_ns - wall_ns, interval_ns: null };
}

/**
 * The speeds with every lever but `moved` at the nearest replayed one, since only one slider at a time is between points, and
 * those as measured of which the change of `moved` is a part, or that it is a part of.
 */
export function settled(section, speeds, moved) {
  const overlaps = (one, other) => section.levers[one].includes === section.levers[other].key;
  return speeds.map((speed, at) => {
    if (speeds[moved] !== 1 && at !== moved && (overlaps(at, moved) || overlaps(moved, at))) return 1;
    const replayed = replayedSpeeds(section, section.levers[at]);
    if (at === moved || replayed.includes(speed)) return speed;
    return replayed.reduce((best, other) => (Math.abs(1 / other - 1 / speed) < Math.abs(1 / best - 1 / speed) ? other : best));
  });
}
