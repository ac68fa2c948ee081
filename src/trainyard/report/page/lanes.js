// The timeline's slices: unpacked once, drawn as rows of pixels.

/** base64 of zlib -> bytes. */
async function inflate(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Reads `count` varints from `bytes` at `from.at`, and advances it. Times exceed 2³², so this multiplies instead of shifting. */
export function readVarints(bytes, from, count) {
  const values = new Float64Array(count);
  let at = from.at;
  for (let i = 0; i < count; i += 1) {
    let byte = bytes[at++];
    let value = byte & 127;
    for (let factor = 128; byte > 127; factor *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * factor;
    }
    values[i] = value;
  }
  from.at = at;
  return values;
}

/** base64 of zlib of JSON -> its value. */
const inflateJson = async (text) => JSON.parse(new TextDecoder().decode(await inflate(text)));

/**
 * The packed timeline -> {names, lanes, stacks, shapes, stepsOfRanks, path}. A lane: {rank, label, kind, depth, starts, ends, kinds, details}, times in ns from the
 * origin; `details[column]`: a value for each slice, 0 for unknown, else one more than the quantity. `stacks`: {names, parents, spans}, see `stackOf`.
 * `stepsOfRanks`: rank -> [label, start, stop] of each step, for ranks whose steps differ from `packed.steps`. `path`: see `unpackPath`, or null.
 */
export async function unpack(packed) {
  const [bytes, extra, names, [spanNames, parents, spans], shapes, [steps, numbers]] = await Promise.all([
    inflate(packed.slices), inflate(packed.details), inflateJson(packed.names), inflateJson(packed.stacks), inflateJson(packed.shapes), inflateJson(packed.steps_of_ranks),
  ]);
  const total = packed.lanes.reduce((sum, [, , count]) => sum + count, 0);
  const from = { at: 0 };
  const [gaps, lengths, kinds] = [0, 1, 2].map(() => readVarints(bytes, from, total));
  let first = 0;
  let details = null;
  const lanes = packed.lanes.map(([rank, label, count, kind, depth], at) => {
    const lane = {
      rank, label, kind, depth, starts: new Float64Array(count), ends: new Float64Array(count), kinds: Uint32Array.from(kinds.subarray(first, first + count)),
      get details() { return (details ??= readDetails(packed, extra))[at]; },
    };
    let clock = 0;
    for (let i = 0; i < count; i += 1) {
      lane.starts[i] = clock += gaps[first + i];
      lane.ends[i] = clock += lengths[first + i];
    }
    first += count;
    return lane;
  });
  const stepsOfRanks = new Map(Object.entries(numbers).map(([rank, own]) => [Number(rank), own.map((number) => steps[number])]));
  return { names, lanes, stacks: { names: spanNames, parents, spans }, shapes, stepsOfRanks, path: packed.path && await unpackPath(packed.path) };
}

/** The details of each lane, column -> values, from their `bytes`. The first drawing does without them, so they are read later. */
function readDetails(packed, bytes) {
  const from = { at: 0 };
  const details = packed.lanes.map(() => ({}));
  packed.columns.forEach((column, number) => {
    packed.lanes.forEach(([, , count, , , columns], at) => {
      if (columns.includes(number)) details[at][column] = readVarints(bytes, from, count);
    });
  });
  return details;
}

/** The packed critical path -> {starts, ends, kinds, lanes}, times in ns from the origin: `kinds` are numbers of shares, `lanes` of lanes, -1 for none. */
async function unpackPath({ segments, count }) {
  const [bytes, from] = [await inflate(segments), { at: 0 }];
  const [gaps, lengths, lanes, shares] = [0, 1, 2, 3].map(() => readVarints(bytes, from, count));
  const [starts, ends] = [new Float64Array(count), new Float64Array(count)];
  let clock = 0;
  for (let at = 0; at < count; at += 1) {
    starts[at] = clock += gaps[at];
    ends[at] = clock += lengths[at];
  }
  return { starts, ends, kinds: Uint32Array.from(shares), lanes: Int32Array.from(lanes, (number) => number - 1) };
}

/** The names of the spans around a slice, innermost first. `node`: the number of the innermost span, -1 for none. */
export function stackOf({ names, parents, spans }, node) {
  const stack = [];
  for (let at = node; at >= 0; at = parents[at]) stack.push(names[spans[at]]);
  return stack;
}

/** Index of the first slice of a lane that ends after `ns`. */
export function firstAfter(lane, ns) {
  let [low, high] = [0, lane.ends.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.ends[middle] > ns) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Paints one lane into a row of pixels, every pixel the mean of what it covers: a lane of any number of slices costs
 * what its pixels cost, nothing is dropped, and half-idle stretches look half idle.
 * `paint[kind]` = [r, g, b, weight 0..1, loud]; loud kinds keep a whole pixel however short they are.
 * Returns how many slices were in sight.
 */
export function paintRow(lane, from, to, row, sums, paint) {
  const width = sums.length / 4;
  const per = width / (to - from);
  sums.fill(0);
  const first = firstAfter(lane, from);
  let at = first;
  for (; at < lane.starts.length && lane.starts[at] < to; at += 1) {
    const colour = paint[lane.kinds[at]];
    const left = Math.max(0, (lane.starts[at] - from) * per);
    let right = Math.min(width, (lane.ends[at] - from) * per);
    // A hair between neighbours that are wide enough to show one.
    if (right - left > 4) right -= 1;
    const low = Math.floor(left);
    const high = Math.min(width - 1, Math.floor(right));
    for (let pixel = low; pixel <= high; pixel += 1) {
      const part = Math.min(right, pixel + 1) - Math.max(left, pixel);
      if (part <= 0 && !colour[4]) continue;
      const weight = part * colour[3];
      const slot = pixel * 4;
      sums[slot] += colour[0] * weight;
      sums[slot + 1] += colour[1] * weight;
      sums[slot + 2] += colour[2] * weight;
      sums[slot + 3] += weight;
    }
  }
  for (let slot = 0; slot < sums.length; slot += 4) {
    const weight = sums[slot + 3];
    if (weight === 0) continue;
    row[slot] = sums[slot] / weight;
    row[slot + 1] = sums[slot + 1] / weight;
    row[slot + 2] = sums[slot + 2] / weight;
    // The square root raises low occupancy, so that a single short slice is pale but visible.
    row[slot + 3] = Math.min(1, weight ** 0.45) * 255;
  }
  for (let i = first; i < at; i += 1) {
    const colour = paint[lane.kinds[i]];
    if (!colour[4]) continue;
    const slot = Math.max(0, Math.floor((lane.starts[i] - from) * per)) * 4;
    row.set([colour[0], colour[1], colour[2], 255], Math.min(slot, row.length - 4));
  }
  return at - first;
}

/** Count and ns of each kind that lies in [from, to), over all lanes. */
export function totals(lanes, kinds, from, to) {
  const counts = new Float64Array(kinds);
  const lengths = new Float64Array(kinds);
  for (const lane of lanes) {
    for (let at = firstAfter(lane, from); at < lane.starts.length && lane.starts[at] < to; at += 1) {
      counts[lane.kinds[at]] += 1;
      lengths[lane.kinds[at]] += Math.min(to, lane.ends[at]) - Math.max(from, lane.starts[at]);
    }
  }
  return { counts, lengths };
}
