// Numbers and times as text.

/** @type {[string, number][]} */
const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

/** The unit and digits that suit a step of `wall` ns: every time of a chart is written in them. */
export function scaleFor(wall) {
  const [unit, size] = UNITS.find(([name, ns]) => Math.abs(wall) >= (name === "s" ? 10 * ns : ns)) ?? UNITS[3];
  const whole = Math.abs(wall) / size;
  return { unit, size, digits: unit === "ns" ? 0 : whole >= 100 ? 1 : whole >= 10 ? 2 : 3 };
}

/** A time in ns in the unit that suits it, with about `least` significant digits. */
export function time(ns, least = 3) {
  const { unit, size } = scaleFor(ns);
  const value = ns / size;
  const digits = unit === "ns" ? 0 : Math.max(0, least - Math.floor(Math.log10(Math.abs(value) || 1)) - 1);
  return `${fixed(value, Math.min(digits, 3))} ${unit}`;
}

/** A number with `digits` decimals, thousands separators and a minus sign. */
export function fixed(value, digits) {
  const [units, parts] = Math.abs(value).toFixed(digits).split(".");
  return (value < 0 ? "−" : "") + units.replace(/\B(?=(\d{3})+$)/g, ",") + (parts ? `.${parts}` : "");
}

export const whole = (value) => fixed(value, 0);
export const share = (part, all) => (all ? `${fixed((100 * part) / all, 1)} %` : "–");
export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;

/** Round steps (1, 2, 5 × 10ⁿ) that put about `count` ticks on `span`. */
export function tickStep(span, count) {
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((nice) => nice * power >= raw) * power;
}

/** @type {[string, number][]} */
const BINARY = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
/** @type {[string, number][]} */
const DECIMAL = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];

/** The unit that suits a value: the first of `units` that is not larger, else `smallest`. */
const unitOf = (value, units, smallest) => units.find(([, size]) => value >= size) ?? [smallest, 1];

/** Bytes in binary units, as the terminal writes them. */
export function size(bytes, digits = 1) {
  const [unit, factor] = unitOf(bytes, BINARY, "B");
  return `${fixed(bytes / factor, factor === 1 ? 0 : digits)} ${unit}`;
}

/** Bytes as the terminal writes them for plans: in powers of ten. */
export function decimal(bytes, digits = 1) {
  const [unit, factor] = unitOf(bytes, DECIMAL, "");
  return `${fixed(bytes / factor, factor === 1 ? 0 : digits)} ${unit}B`;
}

/** A count with about three digits: 174.8k. */
export function brief(value) {
  if (value < 1) return String(Number(value.toPrecision(2)));
  const [unit, factor] = unitOf(value, DECIMAL, "");
  const scaled = value / factor;
  return `${fixed(scaled, scaled >= 100 || scaled === Math.round(scaled) ? 0 : 1)}${unit}`;
}
