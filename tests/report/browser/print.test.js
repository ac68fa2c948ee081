// A page that is printed while it is still being built has all its sections.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { pageUrl, startBrowser } from "./pages.js";

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser.close());

test("printing builds the sections below the timeline at once, and only once", async () => {
  const page = await browser.newPage();
  await page.evaluateOnNewDocument(() => addEventListener("DOMContentLoaded", () => {
    const sections = () => [...document.querySelectorAll("main section")].map(({ id }) => id);
    window.before = sections();
    dispatchEvent(new Event("beforeprint"));
    window.printed = sections();
  }));
  await page.goto(pageUrl("ranks.html"));
  await page.waitForFunction(() => performance.getEntriesByName("trainyard-drawn").length > 0, { timeout: 10000 });
  await new Promise((resolve) => setTimeout(resolve, 200));
  const { before: first, printed } = await page.evaluate(() => ({ before: window.before, printed: window.printed }));
  assert.ok(!first.includes("kernels"));
  for (const id of ["timeline", "accounts", "kernels", "modules", "limits"]) assert.ok(printed.includes(id), id);
  assert.deepEqual(await page.$$eval("main section", (cards) => cards.map(({ id }) => id)), printed);
  assert.equal((await page.$$("footer")).length, 1);
  await page.close();
});
