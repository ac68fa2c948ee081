// Memory over time and the load of experts, by mouse and by keyboard.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { axeViolations, becomes, open, startBrowser } from "./pages.js";

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser.close());

const text = (page, selector) => page.$eval(selector, (element) => element.textContent);

test("a category of memory is selected by keyboard, and the link reopens it", async () => {
  const { page, problems } = await open(browser, "hostile.html");
  const fills = () => page.$$eval("#memory svg .body", (bands) => bands.map((band) => band.getAttribute("fill")));
  const before = await fills();
  await page.focus("#memory .keys button:nth-child(2)");
  await page.keyboard.press("Enter");
  await becomes(page, "memory", "Activations");
  const dimmed = await fills();
  assert.deepEqual(dimmed.map((fill, at) => fill === before[at]), [false, true, false]);
  const link = page.url();
  await page.goto("about:blank");
  await page.goto(link);
  await page.waitForSelector('#memory .keys [aria-pressed="true"]');
  assert.deepEqual(await fills(), dimmed);
  assert.match(await text(page, "#memory svg .value"), /^peak 49\.9 GiB of 60\.0 GiB reserved at 210 ms$/);
  assert.match(await page.$eval("#memory + section h2", (title) => title.textContent), /Held at the memory peak/);
  assert.equal((await page.$$("#memory + section tbody tr")).length, 3);
  assert.deepEqual(problems, []);
  await page.close();
});

test("the load of experts by layer, of a step, and by step, by keyboard", async () => {
  const { page, problems } = await open(browser, "hostile.html");
  await page.focus("#experts .heat");
  for (const key of ["ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"]) await page.keyboard.press(key);
  assert.match(await text(page, "#live"), /^expert 0 · layers\.2, [\d,]+ tokens, [\d.]+ % of the row, [\d.]+ × the mean$/);
  const all = await text(page, "#live");
  await page.select("#experts select", "51");
  await page.focus("#experts .heat");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  assert.notEqual(await text(page, "#live"), all);
  await page.focus("#experts .choosers button:nth-child(2)");
  await page.keyboard.press("Enter");
  assert.equal((await page.$$("#experts option")).length, 5);
  await page.focus("#experts .heat");
  for (let at = 0; at < 20; at += 1) await page.keyboard.press("ArrowDown");
  assert.match(await text(page, "#live"), /^expert 0 · step 51, /);
  await page.focus("#experts summary");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#experts details tbody tr:nth-child(6):last-child");
  assert.deepEqual(problems, []);
  await page.close();
});

test("no violations in light and dark, wide and narrow", async () => {
  for (const [theme, width] of [["light", 1400], ["dark", 800]]) {
    const { page, problems } = await open(browser, "hostile.html", `#theme=${theme}`, { width });
    await page.focus("#experts summary");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#experts details tbody tr");
    assert.deepEqual(await axeViolations(page), []);
    assert.deepEqual(problems, []);
    await page.close();
  }
});
