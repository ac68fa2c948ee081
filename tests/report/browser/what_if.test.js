// The what-if section by keyboard and by mouse, and the charts, saved as files.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { becomes, open, pageUrl, startBrowser } from "./pages.js";

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser.close());

const text = (page, selector) => page.$eval(selector, (element) => element.textContent);
const press = async (page, ...keys) => { for (const key of keys) await page.keyboard.press(key); };

test("keyboard: a slider between and at replays, a switch, and a link that reopens the view", async () => {
  const { page, problems } = await open(browser, "hostile.html");
  await page.focus("#lever0");
  await press(page, "ArrowRight");
  await becomes(page, "whatif", "network=1.1x");
  assert.match(await text(page, ".verdict"), /interpolated between the replays at 1× and 2×; no interval/);
  await press(page, "End");
  await becomes(page, "whatif", "network=4x");
  assert.equal(await text(page, "#whatif output[for=lever0]"), "4× as fast");
  assert.match(await text(page, ".verdict"), /88\.5 ms recovered, 80 % interval 80\.0 ms to 97\.0 ms over 20 steps/);
  assert.equal(await page.$eval("#whatif svg g:last-of-type", (row) => row.getAttribute("aria-label")), "Step: measured 418,000,000 ns, predicted 329,500,001 ns");
  await page.focus("#lever2");
  await press(page, "Space");
  await becomes(page, "whatif", "no-stragglers,network=4x");
  assert.match(await text(page, ".verdict"), /not computed.*--change no-stragglers --change network=4x/);
  const link = page.url();
  await page.goto("about:blank");
  await page.goto(link);
  assert.equal(await page.$eval("#lever0", (slider) => slider.value), "4");
  assert.equal(await page.$eval("#lever2", (box) => box.checked), true);
  assert.equal(await page.$eval("#lever1", (slider) => slider.disabled), true);
  assert.deepEqual(problems, []);
  await page.close();
});

test("mouse: hypothetical devices set the sliders", async () => {
  const { page, problems } = await open(browser, "hostile.html");
  const [measured, faster] = await page.$$("#whatif .devices button");
  await faster.click();
  await becomes(page, "whatif", "network=2x");
  assert.equal(await page.$eval("#lever0", (slider) => slider.value), "2");
  await measured.click();
  assert.equal(await text(page, "#whatif output[for=lever0]"), "as measured");
  assert.deepEqual(problems, []);
  await page.close();
});

test("every chart is saved as CSV, PNG and SVG, and hostile names stay text", async () => {
  const { page, problems } = await open(browser, "hostile.html");
  await page.evaluate(() => {
    window.saved = [];
    HTMLAnchorElement.prototype.click = function click() { window.saved.push(this.download); };
  });
  for (const id of ["whatif", "series", "pipeline", "roofline", "busbandwidth", "goodput", "memory", "experts"]) {
    for (const button of await page.$$(`#${id} .takes button`)) await button.evaluate((element) => element.click());
  }
  await page.waitForFunction(() => window.saved.length === 24, { timeout: 5000 });
  const names = await page.evaluate(() => window.saved);
  for (const name of ["what-if", "series", "pipeline", "roofline", "bus-bandwidth", "goodput", "memory", "expert-load"]) {
    for (const ending of ["csv", "png", "svg"]) assert.ok(names.includes(`trainyard-${name}.${ending}`), `${name}.${ending} of ${names}`);
  }
  assert.equal(await page.$$eval("main img, main [onerror]", (found) => found.length), 0);
  assert.deepEqual(problems, []);
  await page.close();
});

test("a range and a hostile text in the address leave the sliders as measured", async () => {
  for (const address of ["#whatif=network%3D1e9x", "#whatif=%3Cimg%20src%3Dx%3E", "#whatif=memory%3D2x"]) {
    const { page, problems } = await open(browser, "hostile.html", address);
    assert.equal(await text(page, "#whatif output[for=lever0]"), "as measured", pageUrl("hostile.html", address));
    assert.deepEqual(problems, []);
    await page.close();
  }
});

test("the button of a late rank's finding sets its switch, which recovers the price of the finding", async () => {
  const { page, problems } = await open(browser, "ranks.html");
  const label = "Rank 1 as fast as the others";
  const finding = "::-p-xpath(//ol[@class='findings']/li[.//code[text()='straggler']])";
  await page.click(`${finding} ::-p-text(Show in What if)`);
  await becomes(page, "whatif", "rank:1=typical");
  const price = await page.$eval(`${finding} .cost b`, (element) => element.textContent);
  assert.match(await text(page, ".verdict"), new RegExp(`${price.replaceAll(".", "\\.")} recovered`));
  const checked = (name) => page.$$eval("#whatif .lever", (levers, wanted) => levers.find((lever) => lever.querySelector("label").textContent === wanted).querySelector("input").checked, name);
  assert.equal(await checked(label), true);
  await page.click("#whatif ::-p-text(All ranks equally fast)");
  await becomes(page, "whatif", "no-stragglers");
  assert.equal(await checked(label), false);
  assert.deepEqual(problems, []);
  await page.close();
});
