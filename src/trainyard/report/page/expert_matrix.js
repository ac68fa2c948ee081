// Loads of experts as a matrix: experts by layer or by step, relative to the mean of the row.

/**
 * Loads of the experts by layer or by step: `tokens[row][expert]`, and `loads[row][expert]`, the tokens divided by the mean of the row.
 * @typedef {{by: string, labels: string[], tokens: number[][], loads: number[][]}} Matrix
 */

/**
 * The matrix of the layers in a step, or of all recorded steps if `step` is null.
 * @returns {Matrix}
 */
export function layerMatrix({ layers, experts, steps, tokens }, step = null) {
  const shown = step === null ? tokens : [tokens[steps.indexOf(step)]];
  const sums = layers.map((_, layer) => Array.from({ length: experts }, (_, expert) => shown.reduce((sum, ofStep) => sum + ofStep[layer][expert], 0)));
  return { by: "layer", labels: layers, tokens: sums, loads: sums.map(relative) };
}

/**
 * The matrix of the steps of a layer.
 * @returns {Matrix}
 */
export function stepMatrix({ layers, steps, tokens }, layer) {
  const rows = tokens.map((ofStep) => ofStep[layers.indexOf(layer)]);
  return { by: "step", labels: steps.map((step) => `step ${step}`), tokens: rows, loads: rows.map(relative) };
}

/** Counts divided by their mean. */
function relative(counts) {
  const mean = counts.reduce((sum, count) => sum + count, 0) / counts.length;
  return counts.map((count) => count / mean);
}

/** The imbalance of a row: the load of its busiest expert, since loads are relative to the mean. */
export const imbalance = (loads) => Math.max(...loads);

/** The load that is drawn in full colour: that of all but the busiest fortieth of the cells, and at least twice the mean. */
export function fullLoad({ loads }) {
  const sorted = loads.flat().sort((a, b) => a - b);
  return Math.max(2, Math.ceil(sorted[Math.floor(0.975 * (sorted.length - 1))]));
}

/** The colour of a load as a number from -1, no tokens, over 0, the mean, to 1, `full` times the mean or more. */
export const shade = (load, full) => (load < 1 ? load - 1 : Math.min(1, (load - 1) / (full - 1)));
