// The page that compares recorded tensors by mouse and by keyboard alone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { axeViolations, becomes, open, startBrowser } from "./pages.js";

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser.close());

const texts = (page, selector) => page.$$eval(selector, (elements) => elements.map((element) => element.textContent));
const press = async (page, ...keys) => { for (const key of keys) await page.keyboard.press(key); };

test("the button of the first fault opens the tensors of its module, and the address keeps them", async () => {
  const { page, problems } = await open(browser, "numerics-different.html");
  await page.click("#fault .more");
  await page.waitForSelector("#modules .tensors tbody tr.chosen");
  assert.match((await texts(page, "#modules .tensors tr.chosen .name"))[0], /^aten\.rms_norm/);
  await page.waitForFunction(() => location.hash.includes("open="));
  await page.reload();
  await page.waitForSelector("#modules .tensors");
  assert.deepEqual(problems, []);
  await page.close();
});

test("keyboard: modules are folded, unfolded and opened with arrows and Enter", async () => {
  const { page, problems } = await open(browser, "numerics-large.html");
  const rows = () => page.$$eval("#modules tr.module", (lines) => lines.length);
  const before = await rows();
  assert.ok(before < 200, `${before} rows`);
  await page.$eval("#modules button.name", (button) => button.focus());
  await press(page, "Home", "ArrowLeft");
  assert.equal(await rows(), 1);
  await press(page, "ArrowRight");
  assert.equal(await rows(), before);
  await press(page, "End", "ArrowUp", "Enter");
  await page.waitForSelector("#modules tr.tensors");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-expanded")), "true");
  await press(page, "Enter");
  assert.equal(await page.$("#modules tr.tensors"), null);
  assert.deepEqual(problems, []);
  await page.close();
});

test("modules are searched and filtered, in the phase of the first fault or in all steps", async () => {
  const { page, problems } = await open(browser, "numerics-large.html");
  await page.type("#modules input", "layers.7.mlp");
  await becomes(page, "q", "layers.7.mlp");
  assert.equal((await page.$$("#modules tr.module")).length, 5);
  await page.click("#modules .search .more");
  await becomes(page, "kind", "different");
  assert.deepEqual(await texts(page, "#modules .empty"), ["No module matches."]);
  await page.click("#modules .orders button:last-child");
  await becomes(page, "by", "all");
  assert.equal((await page.$$("#modules tr.module")).length, 5);
  assert.deepEqual(problems, []);
  await page.close();
});

test("a large comparison has few elements at first", async () => {
  const { page, problems } = await open(browser, "numerics-large.html");
  assert.ok(await page.evaluate(() => document.querySelectorAll("*").length) < 4000);
  assert.deepEqual(problems, []);
  await page.close();
});

test("files can be saved, and tables behind charts open", async () => {
  const { page, problems } = await open(browser, "numerics-different.html");
  await page.$$eval("details > summary", (summaries) => summaries.forEach((summary) => summary.click()));
  await page.waitForFunction(() => [...document.querySelectorAll("details")].every((box) => box.querySelector("table")));
  await page.evaluate(() => {
    globalThis.saved = [];
    HTMLAnchorElement.prototype.click = function () { globalThis.saved.push(this.download); };
    document.querySelectorAll(".take").forEach((button) => button.click());
  });
  await page.waitForFunction(() => globalThis.saved.length === document.querySelectorAll(".take").length);
  assert.deepEqual(problems, []);
  await page.close();
});

test("hostile names and scripts are only text", async () => {
  const { page, problems } = await open(browser, "numerics-hostile.html");
  await page.$$eval("#modules button.name", (buttons) => buttons[0].click());
  await page.waitForSelector("#modules tr.tensors");
  assert.equal(await page.evaluate(() => globalThis.hacked ?? document.querySelectorAll("main img, main iframe, main script").length), 0);
  assert.match((await texts(page, "#reproducer code"))[0], /<img src=x onerror=alert\(1\)>/);
  assert.deepEqual(problems, []);
  await page.close();
});

test("without a fault there is no section of it, and modules have the errors of all steps", async () => {
  for (const name of ["same", "unjudged"]) {
    const { page, problems } = await open(browser, `numerics-${name}.html`);
    assert.equal(await page.$("#fault"), null);
    assert.equal(await page.$("#modules .orders button"), null);
    assert.ok((await page.$$("#modules tr.module")).length > 3);
    assert.deepEqual(problems, []);
    await page.close();
  }
});

test("axe-core finds no violation in any comparison of records", async () => {
  for (const name of ["different", "same", "unjudged", "hostile"]) {
    for (const theme of ["light", "dark"]) {
      const { page, problems } = await open(browser, `numerics-${name}.html`, `#theme=${theme}&open=0,1`, { width: theme === "dark" ? 800 : 1400 });
      assert.deepEqual(await axeViolations(page), [], `${name}, ${theme}`);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name}, ${theme}: too wide`);
      assert.deepEqual(problems, []);
      await page.close();
    }
  }
});
