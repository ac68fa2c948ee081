// Many ranks in groups, by mouse and by keyboard alone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { open, parameter, showTimeline, startBrowser } from "./pages.js";

const RULER = 36;
let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser.close());

const columns = (page) => page.$$eval(".heat .label", (labels) => document.querySelectorAll(".heat .cell").length / labels.length);

/** Clicks the button with this text in a section. */
const clickButton = (page, section, label) => page.$$eval(`#${section} button`, (buttons, wanted) => buttons.find((button) => button.textContent.includes(wanted)).click(), label);

test("mouse: groups open in the timeline and in the heat map, and ranks are selected", async () => {
  const { page, problems } = await open(browser, "many.html");
  assert.equal(await columns(page), 3);
  const box = await showTimeline(page);
  await page.mouse.click(box.x + 60, box.y + RULER + 25 + 10);
  assert.equal(await parameter(page, "open"), "1");
  assert.equal(await columns(page), 10, "the eight ranks of the second group have columns of their own");
  await page.mouse.click(box.x + 60, box.y + RULER + 25 + 20 + 3);
  assert.equal(await parameter(page, "rank"), "40");
  await clickButton(page, "ranks", "8 ranks");
  await page.waitForFunction(() => !location.hash.includes("open="));
  assert.equal(await columns(page), 4, "the selected rank keeps its column");
  await clickButton(page, "timeline", "pipeline stage");
  assert.equal(await parameter(page, "by"), "stage");
  assert.equal(await page.$eval("#ranks .orders [aria-pressed=true]", (button) => button.textContent), "pipeline stage");
  assert.deepEqual(problems, []);
  await page.close();
});

test("keyboard: ranks are selected in the order shown, and their group opens", async () => {
  const { page, problems } = await open(browser, "many.html", "#by=stage&rank=4");
  await showTimeline(page);
  await page.focus("#timeline canvas");
  await page.keyboard.press("Enter");
  assert.equal(await parameter(page, "open"), "0");
  await page.keyboard.press("ArrowDown");
  await page.waitForFunction(() => location.hash.includes("rank=8"));
  await page.keyboard.press("ArrowUp");
  await page.waitForFunction(() => location.hash.includes("rank=4"));
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !location.hash.includes("open="));
  const key = await page.$("#timeline .orders button:last-of-type");
  await key.focus();
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => location.hash.includes("by=rank"));
  assert.deepEqual(problems, []);
  await page.close();
});
