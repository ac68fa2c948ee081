// The timeline by mouse and by keyboard alone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { axeViolations, becomes, open, pageUrl, parameter, showTimeline, startBrowser } from "./pages.js";

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser.close());

const text = (page, selector) => page.$eval(selector, (element) => element.textContent);
const isHidden = (page, selector) => page.$eval(selector, (element) => element.hidden);
const press = async (page, ...keys) => { for (const key of keys) await page.keyboard.press(key); };
const terms = (page) => page.$$eval(".picked dl > div", (rows) => Object.fromEntries(rows.map((row) => [row.querySelector("dt").textContent, row.querySelector("dd").textContent])));
const bookedNs = async (page) => Number((await text(page, ".range .note")).match(/adds up to ([\d,]+) ns/)[1].replaceAll(",", ""));

test("mouse: select a slice, its launch, a collective and a range", async () => {
  const { page, problems } = await open(browser, "ranks.html", "#rank=1");
  const box = await showTimeline(page);
  await page.mouse.click(box.x + box.width * 0.4, box.y + 36 + 8);
  assert.equal(await isHidden(page, ".picked"), false);
  assert.ok((await terms(page)).Account);
  await page.mouse.move(box.x + box.width * 0.3, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 60, { steps: 4 });
  await page.mouse.up();
  const [left, right] = (await parameter(page, "range")).split("-").map(Number);
  assert.ok(right > left);
  assert.equal(await bookedNs(page), right - left, "the ledger of a range has all of its time");
  await page.click(".range .take");
  await becomes(page, "t", `${left}-${right}`);
  await page.evaluate(() => [...document.querySelectorAll(".range .take")].at(-1).click());
  assert.equal(await isHidden(page, ".range"), true);
  assert.deepEqual(problems, []);
  await page.close();
});

test("keyboard: every action of the timeline", async () => {
  const { page, problems } = await open(browser, "ranks.html", "#rank=0");
  await showTimeline(page);
  await page.focus("#timeline canvas");
  await press(page, "ArrowRight");
  assert.equal((await terms(page)).Lane, "rank 0 · ledger");
  await press(page, "ArrowDown");
  assert.equal((await terms(page)).Lane, "rank 0 · stream 7");
  await press(page, "/");
  await page.keyboard.type("gemm");
  // The launch of the first one is before the window of the timeline.
  await press(page, "Enter", "Enter");
  await becomes(page, "q", "gemm");
  assert.equal(await text(page, ".picked .name"), "gemm_kernel");
  const kernel = await terms(page);
  assert.equal(kernel.Launched, "9.00 µs before it started");
  assert.equal(kernel.Booked, "all of it: nothing with higher precedence ran at the same time");
  assert.deepEqual(await page.$$eval(".picked ol code", (frames) => frames.map((frame) => frame.textContent)), ["cudaLaunchKernel", "aten::mm", "train.py(7): step", "ProfilerStep#1"]);
  await page.focus("#timeline canvas");
  await press(page, "l");
  assert.equal(await text(page, ".picked .name"), "cudaLaunchKernel");
  assert.equal((await terms(page)).Kind, "Driver call");
  await press(page, "r");
  assert.equal(await bookedNs(page), 2000);
  await press(page, "]");
  await becomes(page, "range", "57000-157000");
  assert.equal(await bookedNs(page), 100_000);
  await press(page, "]");
  await becomes(page, "range", "157000-274000");
  await press(page, "[");
  await becomes(page, "range", "57000-157000");
  await press(page, "h");
  await becomes(page, "host", "0");
  await press(page, "?");
  assert.equal(await page.$eval("dialog", (dialog) => dialog.open), true);
  await press(page, "Escape", "Escape");
  await page.waitForFunction(() => !location.hash.includes("range"));
  assert.equal(await isHidden(page, ".picked"), true);
  assert.deepEqual(problems, []);
  await page.close();
});

test("a collective lists its members by arrival, and a finding shows its interval", async () => {
  const { page, problems } = await open(browser, "ranks.html", "#q=nccl");
  await showTimeline(page);
  await page.focus("#timeline input");
  await press(page, "Enter");
  const rows = await page.$$eval(".picked table tbody tr", (lines) => lines.map((line) => line.textContent));
  assert.equal(rows.length, 2);
  // Rank 0 arrives 15 µs before rank 1, and waits for it.
  assert.match(rows[0], /^rank 0\+0 ns15\.0 µs/);
  assert.match(rows[1], /^rank 1\+15\.0 µs0 ns/);
  const button = await page.$(".findings .take");
  await button.click();
  assert.equal(await text(page, ".picked .name"), await page.$eval(".picked dd", (account) => account.textContent));
  assert.deepEqual(problems, []);
  await page.close();
});

test("the finding of a late rank shows what that rank did", async () => {
  const { page, problems } = await open(browser, "ranks.html");
  await showTimeline(page);
  const findings = await page.$$(".findings > li");
  const texts = await Promise.all(findings.map((finding) => finding.evaluate((item) => item.textContent)));
  const late = texts.findIndex((item) => item.includes("--change rank:1=typical"));
  assert.ok(late >= 0, texts.join("; "));
  await (await findings[late].$(".take")).click();
  const facts = await terms(page);
  assert.match(facts.Account, /^Idle: Python/, JSON.stringify(facts));
  assert.match(facts.Lane, /^rank 1/);
  assert.deepEqual(problems, []);
  await page.close();
});

test("idle time shows what the host did", async () => {
  const { page } = await open(browser, "ranks.html", "#rank=0&q=idle");
  const box = await showTimeline(page);
  await page.focus("#timeline canvas");
  // From the first slice of the ledger to the first that is idle.
  await press(page, "ArrowRight");
  for (let tries = 0; tries < 20 && !(await terms(page)).Account.startsWith("Idle: Python"); tries += 1) await press(page, "ArrowRight");
  assert.ok(box.width > 0);
  assert.match((await terms(page)).Account, /^Idle: Python/);
  const spans = await page.$$eval(".picked .stack tbody tr", (lines) => lines.map((line) => line.textContent));
  assert.ok(spans.includes("train.py(7): step100.0 %"), spans.join("; "));
  await page.close();
});

test("keyboard: the idle time of a step by function can be sorted", async () => {
  const { page, problems } = await open(browser, "ranks.html", "#rank=1&range=57000-157000");
  await showTimeline(page);
  const rows = () => page.$$eval(".idle tbody tr", (lines) => lines.map((line) => [...line.cells].map((cell) => cell.textContent)));
  const units = { ns: 1, "µs": 1000, ms: 1e6 };
  const ns = (cell) => Number(cell.split(/\s/)[0]) * units[cell.split(/\s/)[1]];
  const accounts = await page.$$eval(".range .columns > div:first-child tbody tr", (lines) => lines.map((line) => [...line.cells].map((cell) => cell.textContent)));
  const idle = accounts.filter(([name]) => name.includes("Idle")).reduce((sum, [, cell]) => sum + ns(cell), 0);
  const before = await rows();
  assert.ok(idle > 0);
  assert.ok(before.some(([name]) => name === "train.py(7): step"));
  assert.ok(Math.abs(before.reduce((sum, [, cell]) => sum + ns(cell), 0) - idle) <= 50 * before.length, `the rows add up to the idle accounts: ${JSON.stringify(before)}, ${idle}`);
  await page.focus(".idle thead th:first-child button");
  await press(page, "Enter");
  assert.deepEqual((await rows()).map(([name]) => name), before.map(([name]) => name).sort((a, b) => a.localeCompare(b)));
  await page.$$eval("#timeline details > summary", (summaries) => summaries.at(-1).click());
  await page.waitForFunction(() => [...document.querySelectorAll("#timeline details")].at(-1).querySelectorAll("tbody tr").length > 1);
  assert.deepEqual(problems, []);
  await page.close();
});

test("keyboard and mouse: the critical path with its accounts", async () => {
  const { page, problems } = await open(browser, "ranks.html", "#theme=dark");
  await showTimeline(page);
  const pixels = () => page.$eval("#timeline canvas", (canvas) => canvas.toDataURL());
  const before = await pixels();
  await page.focus("#timeline canvas");
  await press(page, "c");
  await becomes(page, "path", "1");
  assert.notEqual(await pixels(), before);
  const panel = '#timeline [aria-label="Critical path"]';
  assert.equal(await isHidden(page, panel), false);
  const cells = (column) => page.$$eval(`${panel} tbody tr`, (lines, at) => lines.map((line) => line.cells[at].textContent), column);
  assert.match(await text(page, `${panel} .note`), /It runs on rank 1 \(\d/);
  assert.equal((await cells(3)).reduce((sum, cell) => sum + parseFloat(cell), 0).toFixed(0), "100");
  await press(page, "]");
  await page.waitForFunction((selector) => document.querySelector(`${selector} thead`).textContent.includes("range"), {}, panel);
  await press(page, "?");
  assert.match(await text(page, "dialog"), /critical path/);
  await press(page, "Escape");
  await page.$eval("#timeline .controls .more", (button) => button.click());
  await becomes(page, "path", null);
  assert.equal(await isHidden(page, panel), true);
  assert.deepEqual(problems, []);
  await page.close();
});

test("the step keys use the steps of the selected rank", async () => {
  const { page, problems } = await open(browser, "apart.html", "#rank=1");
  await showTimeline(page);
  for (const [rank, ns] of [["1", 150_000], ["0", 100_000]]) {
    await page.focus("#timeline canvas");
    if (rank === "0") {
      await page.keyboard.press("Escape");
      await page.evaluate(() => (location.hash = "rank=0"));
      await becomes(page, "rank", "0");
    }
    await press(page, "]");
    await press(page, "]");
    await page.waitForFunction(() => location.hash.includes("range"));
    const [left, right] = (await parameter(page, "range")).split("-").map(Number);
    assert.equal(right - left, ns);
    assert.equal(await bookedNs(page), ns);
    await press(page, "Escape");
  }
  assert.deepEqual(problems, []);
  await page.close();
});

test("a link reopens the view", async () => {
  const { page } = await open(browser, "ranks.html", "#rank=1&t=10000-60000&range=20000-50000&theme=dark");
  assert.equal(await bookedNs(page), 30000);
  assert.match(await text(page, ".range h3"), /rank 1$/);
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.close();
});

for (const name of ["ranks.html", "hostile.html", "many.html", "bare.html"]) {
  for (const theme of ["light", "dark"]) {
    test(`axe-core finds nothing in ${name}, ${theme}`, async () => {
      const { page, problems } = await open(browser, name, `#theme=${theme}&path=1&range=0-150000`);
      assert.deepEqual(await axeViolations(page), []);
      assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
      assert.deepEqual(problems, []);
      await page.close();
    });
  }
}

test("without JavaScript the figures, findings and tables are there", async () => {
  const page = await browser.newPage();
  await page.setJavaScriptEnabled(false);
  await page.goto(pageUrl("hostile.html"));
  const [title, accounts, injected] = await page.evaluate(() => [
    document.querySelector("noscript h1")?.textContent, document.querySelectorAll("noscript tbody tr").length, document.querySelectorAll("noscript img, noscript script").length,
  ]);
  assert.match(title, /^<\/script><img src=x/);
  assert.ok(accounts > 10);
  assert.equal(injected, 0);
  await page.close();
});

test("without DecompressionStream the page says why there is no timeline", async () => {
  const page = await browser.newPage();
  await page.evaluateOnNewDocument(() => delete globalThis.DecompressionStream);
  await page.goto(pageUrl("ranks.html"));
  await page.waitForSelector("#timeline .empty");
  assert.match(await text(page, "#timeline .empty"), /DecompressionStream/);
  assert.ok((await page.$$("#accounts tbody tr")).length > 3);
  await page.close();
});
