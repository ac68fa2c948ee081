// Relative errors: as text, and as points on a logarithmic axis on which the limit is marked.

import { el } from "./dom.js";
import { whole } from "./numbers.js";

const [FROM, TO] = [3, 2];

/** A relative error or a ratio with two digits. */
export function ratio(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value >= 0.01 && value < 100) return String(Number(value.toPrecision(2)));
  return value >= 100 && value < 1e6 ? whole(value) : value.toExponential(1);
}

/** 10 to the power `exponent` as the label of a tick. */
export const powerLabel = (exponent) => (exponent >= -3 && exponent <= 3 ? String(Number((10 ** exponent).toPrecision(1))) : `1e${exponent}`);

/** The axis for these fractions of the limit, as powers of ten [low, high]; from 10^-3 to 10^2 at least, and not below that. */
export function ratioAxis(values) {
  const largest = values.reduce((most, value) => Math.max(most, value ?? 0), 0);
  return [-FROM, Math.max(TO, Math.ceil(Math.log10(largest || 1)))];
}

/** The position of a fraction of the limit on an axis, in per cent; values beyond the axis are at its ends. */
export const ratioPlace = (value, [low, high]) => (100 * (Math.min(high, Math.max(low, value > 0 ? Math.log10(value) : low)) - low)) / (high - low);

/** A fraction of the limit as a point next to the line of the limit. */
export function ratioTrack(value, axis) {
  const [limit, at] = [ratioPlace(1, axis), ratioPlace(value ?? 0, axis)];
  const line = el("i", { class: "ratio-limit" });
  line.style.left = `${limit}%`;
  const track = el("span", { class: value > 1 ? "ratio above" : "ratio", "aria-hidden": "true" }, line);
  if (value === null) return track;
  const [beyond, point] = [el("i", { class: "ratio-beyond" }), el("i", { class: "ratio-point" })];
  beyond.style.left = `${limit}%`;
  beyond.style.width = `${Math.max(0, at - limit)}%`;
  point.style.left = `${at}%`;
  track.append(beyond, point);
  return track;
}

/** The labels of an axis, for the head of a column. */
export function ratioScale(axis) {
  const [low, high] = axis;
  const apart = Math.ceil((high - low) / 4);
  const powers = Array.from({ length: high - low + 1 }, (_, at) => low + at).filter((power) => power % apart === 0);
  return el("span", { class: "ratio scale", "aria-hidden": "true" }, ...powers.map((power) => {
    const label = el("span", {}, power ? powerLabel(power) : "limit");
    label.style.left = `${ratioPlace(10 ** power, axis)}%`;
    return label;
  }));
}
