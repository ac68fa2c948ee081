// Opens a page in headless Chromium, and prints as JSON: milliseconds to the first draw of the timeline over several loads, and
// milliseconds between frames while the timeline is zoomed and panned. node benchmarks/page_in_browser.js PAGE CHROMIUM

import { pathToFileURL } from "node:url";
import { launch } from "puppeteer-core";

const LOADS = 7;
const MOVE_MS = 1500;

const [, , path, executablePath] = process.argv;
const browser = await launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"] });
const page = await browser.newPage();
await page.setViewport({ width: 1400, height: 1600 });

const firstDraws = [];
for (let load = 0; load < LOADS; load += 1) {
  await page.goto(pathToFileURL(path).href);
  await page.waitForFunction(() => performance.getEntriesByName("trainyard-drawn").length > 0);
  firstDraws.push(await page.evaluate(() => performance.getEntriesByName("trainyard-drawn")[0].startTime));
}

await page.$eval("#timeline", (card) => card.scrollIntoView({ behavior: "instant" }));
await page.focus("#timeline canvas");
await page.evaluate(() => {
  globalThis.frames = [];
  let last = performance.now();
  const tick = (now) => {
    globalThis.frames.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
});
const frames = [];
for (const key of ["w", "d", "a", "s"]) {
  await page.evaluate(() => (globalThis.frames.length = 0));
  await page.keyboard.down(key);
  await new Promise((resolve) => setTimeout(resolve, MOVE_MS));
  await page.keyboard.up(key);
  frames.push(...(await page.evaluate(() => globalThis.frames.slice(1))));
}
console.log(JSON.stringify({ firstDraws, frames }));
await browser.close();
