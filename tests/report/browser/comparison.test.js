// The page that compares runs by mouse and by keyboard alone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { axeViolations, becomes, open, startBrowser } from "./pages.js";

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser.close());

const texts = (page, selector) => page.$$eval(selector, (elements) => elements.map((element) => element.textContent));
const press = async (page, ...keys) => { for (const key of keys) await page.keyboard.press(key); };

test("keyboard: an account of the ledgers dims the others in the timelines", async () => {
  const { page, problems } = await open(browser, "compared-traces.html");
  await page.$eval('#ledgers [role="button"]', (field) => field.focus());
  await press(page, "Enter");
  await becomes(page, "kind", "Matmul");
  assert.equal(await page.$eval('#ledgers [role="button"]', (field) => field === document.activeElement && field.getAttribute("aria-pressed")), "true");
  assert.equal(await page.$eval('#timelines .legend [aria-pressed="true"]', (key) => key.textContent), "Matmul");
  await press(page, " ");
  await becomes(page, "kind", null);
  assert.deepEqual(problems, []);
  await page.close();
});

test("keyboard: the timelines of both runs are zoomed, searched and selected together", async () => {
  const { page, problems } = await open(browser, "compared-traces.html", "#rank=0");
  await page.$eval("#timelines", (card) => card.scrollIntoView({ behavior: "instant" }));
  const canvases = await page.$$("#timelines canvas");
  assert.equal(canvases.length, 2);
  await canvases[1].focus();
  await press(page, "ArrowRight", "ArrowDown");
  assert.deepEqual(await page.$$eval("#timelines .picked", (panels) => panels.map((panel) => panel.hidden)), [true, false]);
  await press(page, "r");
  await page.waitForFunction(() => location.hash.includes("range"));
  assert.equal(await page.$$eval("#timelines .range", (panels) => panels.every((panel) => !panel.hidden)), true);
  await press(page, "w");
  await page.waitForFunction(() => location.hash.includes("t="));
  await press(page, "f", "/");
  await page.keyboard.type("gemm");
  await page.waitForFunction(() => document.querySelector("output").textContent === "A 1 match, 4.00 µs · B 1 match, 5.00 µs");
  await press(page, "Escape");
  await page.waitForFunction(() => !/range|t=|q=/.test(location.hash));
  assert.deepEqual(problems, []);
  await page.close();
});

test("the step of each run is chosen, and the address restores it", async () => {
  const { page, problems } = await open(browser, "compared-traces.html");
  const choosers = await page.$$("#timelines .track-head select");
  await choosers[1].select("2");
  await page.waitForFunction(() => /steps=\d\.2/.test(location.hash));
  await page.reload();
  await page.waitForFunction(() => performance.getEntriesByName("trainyard-drawn").length > 0);
  assert.equal(await page.$eval("#timelines .track-of-run:last-child select, #timelines .track-of-run ~ .track-of-run select", (chooser) => chooser.value), "2");
  assert.deepEqual(problems, []);
  await page.close();
});

test("a rank that only one run has is shown next to the closest rank of the other", async () => {
  const { page, problems } = await open(browser, "compared-ranks.html", "#rank=2");
  assert.deepEqual(await texts(page, "#timelines .track-of-run .notice:not([hidden])"), ["A has no rank 2: its rank 0 is shown."]);
  await (await page.$("#timelines .choosers select")).select("0");
  await becomes(page, "rank", "0");
  assert.deepEqual(await texts(page, "#timelines .track-of-run .notice:not([hidden])"), []);
  assert.deepEqual(problems, []);
  await page.close();
});

test("keyboard: the tree of operations is folded and unfolded", async () => {
  const { page, problems } = await open(browser, "compared-traces.html");
  const shown = () => page.$$eval(".tree tbody tr:not([hidden])", (rows) => rows.length);
  await page.focus('.tree [tabindex="0"]');
  const all = await shown();
  await press(page, "End", "Home", "ArrowDown", "ArrowLeft");
  assert.ok((await shown()) < all);
  await press(page, "Enter");
  assert.equal(await shown(), all);
  assert.deepEqual(problems, []);
  await page.close();
});

test("mouse: folded settings and tables open, and files can be saved", async () => {
  const { page, problems } = await open(browser, "compared-plan.html", "#theme=dark");
  await page.$$eval("details > summary", (summaries) => summaries.forEach((summary) => summary.click()));
  await page.waitForFunction(() => [...document.querySelectorAll("details")].every((box) => box.querySelector("table")));
  await page.evaluate(() => {
    globalThis.saved = [];
    HTMLAnchorElement.prototype.click = function () { globalThis.saved.push(this.download); };
    document.querySelectorAll(".take").forEach((button) => button.click());
  });
  await page.waitForFunction(() => globalThis.saved.length === document.querySelectorAll(".take").length);
  assert.deepEqual((await page.evaluate(() => globalThis.saved)).filter((name) => name.endsWith(".svg")).sort(), ["trainyard-ledgers.svg", "trainyard-loss.svg", "trainyard-plan-check.svg", "trainyard-step-time.svg"]);
  assert.deepEqual(problems, []);
  await page.close();
});

test("without DecompressionStream the rest of the page is drawn", async () => {
  const { page: first } = await open(browser, "compared-traces.html");
  await first.evaluateOnNewDocument(() => delete globalThis.DecompressionStream);
  await first.reload();
  await first.waitForSelector("#timelines .empty");
  assert.equal(await first.$eval(".tree", (tree) => tree.rows.length > 2), true);
  await first.close();
});

test("axe-core finds no violation in any comparison", async () => {
  for (const name of ["traces", "runs", "plan", "ranks", "empty", "hostile"]) {
    for (const theme of ["light", "dark"]) {
      const { page, problems } = await open(browser, `compared-${name}.html`, `#theme=${theme}`, { width: theme === "dark" ? 800 : 1400 });
      assert.deepEqual(await axeViolations(page), [], `${name}, ${theme}`);
      assert.deepEqual(problems, []);
      await page.close();
    }
  }
});
