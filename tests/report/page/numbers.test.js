// Numbers and times as text.

import assert from "node:assert/strict";
import { test } from "node:test";

import { brief, decimal, fixed, plural, scaleFor, share, size, tickStep, time } from "../../../src/trainyard/report/page/numbers.js";

test("numbers have thousands separators and a minus sign", () => {
  assert.equal(fixed(1234567.891, 2), "1,234,567.89");
  assert.equal(fixed(-1234, 0), "−1,234");
  assert.equal(fixed(0.5, 3), "0.500");
});

test("the unit of a time suits its length", () => {
  assert.equal(time(0), "0 ns");
  assert.equal(time(999), "999 ns");
  assert.equal(time(1500), "1.50 µs");
  assert.equal(time(44_200_000), "44.2 ms");
  assert.equal(time(-12e9), "−12.0 s");
  assert.equal(scaleFor(2e9).unit, "ms");
  assert.equal(scaleFor(2e10).unit, "s");
});

test("ticks are 1, 2 or 5 times a power of ten, and about as many as wanted", () => {
  for (let exponent = -3; exponent < 12; exponent += 0.37) {
    const span = 10 ** exponent;
    const step = tickStep(span, 8);
    const mantissa = step / 10 ** Math.floor(Math.log10(step) + 1e-9);
    assert.ok([1, 2, 5, 10].some((nice) => Math.abs(mantissa - nice) < 1e-6), `${step}`);
    assert.ok(span / step <= 8.000001 && span / step > 3, `${span} / ${step}`);
  }
});

test("bytes and counts", () => {
  assert.equal(size(0), "0 B");
  assert.equal(size(1536), "1.5 KiB");
  assert.equal(decimal(80e9, 0), "80 GB");
  assert.equal(decimal(12), "12 B");
  assert.equal(brief(174800), "175k");
  assert.equal(brief(17480), "17.5k");
  assert.equal(brief(8), "8");
});

test("shares and plurals", () => {
  assert.equal(share(1, 3), "33.3 %");
  assert.equal(share(1, 0), "–");
  assert.equal(plural(1, "step"), "1 step");
  assert.equal(plural(2000, "match"), "2,000 matches");
});
