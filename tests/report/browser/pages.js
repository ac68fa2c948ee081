// Opens pages of the folder PAGES in the browser CHROMIUM, and records errors and requests.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "puppeteer-core";

export const startBrowser = () => launch({
  executablePath: process.env.CHROMIUM,
  userDataDir: join(process.env.PAGES, "profile"),
  args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
});

/** The address of a page of the folder. */
export const pageUrl = (name) => pathToFileURL(join(process.env.PAGES, name)).href;

/** Opens a page of the folder: {page, problems}. `problems`: error messages, and requests to anything but a file. */
export async function open(browser, name, hash = "", { width = 1400, height = 1600 } = {}) {
  const page = await browser.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => problems.push(message.text()));
  page.on("request", (request) => /^(file|data|blob):/.test(request.url()) || problems.push(request.url()));
  await page.setViewport({ width, height });
  await page.goto(pageUrl(name) + hash);
  await page.waitForFunction(() => document.querySelector("footer") && (performance.getEntriesByName("trainyard-drawn").length > 0
    || document.querySelector("#timeline .empty") || !document.querySelector("#timeline, #timelines")), { timeout: 10000 });
  return { page, problems };
}

/** The violations that axe-core finds, as "rule: elements". */
export async function axeViolations(page) {
  await page.evaluate(await readFile(new URL(import.meta.resolve("axe-core/axe.min.js")), "utf-8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html).join(" ")}`);
}

/** The value of a parameter of the address, once the page has had the time to write its state. */
export async function parameter(page, name) {
  await new Promise((resolve) => setTimeout(resolve, 400));
  return page.evaluate((key) => new URLSearchParams(location.hash.slice(1)).get(key), name);
}

/** Waits until a parameter of the address has a value, which is written shortly after a change; fails after five seconds. */
export const becomes = (page, name, value) =>
  page.waitForFunction((key, wanted) => new URLSearchParams(location.hash.slice(1)).get(key) === wanted, { timeout: 5000 }, name, value);

/** Puts the timeline at the top of the window, and returns the position of its canvas. */
export async function showTimeline(page) {
  await page.$eval("#timeline", (card) => card.scrollIntoView({ behavior: "instant" }));
  return (await page.$("#timeline canvas")).boundingBox();
}
