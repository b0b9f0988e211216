// node page.js MODULES CHROMIUM STEPS: opens pages in chromium without a network and prints, as JSON, what each step
// found, what the pages said on their consoles, and what they asked for that is no file. STEPS: a list, as JSON, of
// [name, argument..].
const { createRequire } = require("node:module");
const { join } = require("node:path");
const [modules, executablePath, steps] = process.argv.slice(2);
const puppeteer = createRequire(join(modules, "_"))("puppeteer-core");

const said = [], asked = [];
let browser, page;
const text = selector => page.$eval(selector, found => found.textContent.replaceAll("\u00a0", " "));
const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const until = (test, ...words) => page.waitForFunction(test, { timeout: 120_000, polling: 10 }, ...words);

// All that there is to show of the program is there.
const whole = () => until(() => {
  const { sent, whole } = document.getElementById("editor").dataset;
  return sent && sent === whole;
});

async function fresh(width, height, scheme) {
  page = await browser.newPage();
  page.on("console", message => ["error", "warn"].includes(message.type()) && said.push(message.text()));
  page.on("pageerror", error => said.push(String(error.stack ?? error)));
  page.on("request", request => /^(file|blob|data):/.test(request.url()) || asked.push(request.url()));
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.setOfflineMode(true);
}

const STEPS = {
  async open(address, width = 1280, height = 1600, scheme = "light") {
    await fresh(width, height, scheme);
    const begun = Date.now();
    await page.goto(address, { waitUntil: "domcontentloaded" });
    await until(() => document.getElementById("editor").dataset.planned || document.querySelector("#mistakes p"));
    const first = Date.now() - begun;
    await whole();
    return first;
  },
  // A page that has no compiler, or is not the editor's.
  async visit(address, width = 1280, height = 900, scheme = "light") {
    await fresh(width, height, scheme);
    await page.goto(address, { waitUntil: "load" });
  },
  async choose(strategy) {
    const sent = await page.$eval("#editor", it => it.dataset.sent);
    await page.select("#strategy", strategy);
    await until(before => document.getElementById("editor").dataset.sent !== before, sent);
    await whole();
  },
  lines: () => page.$$eval(".view-line", found => found
    .sort((a, b) => parseFloat(a.style.top) - parseFloat(b.style.top))
    .map(it => it.textContent.replaceAll("\u00a0", " ").replaceAll("\u200b", ""))),
  text,
  async waitFor(selector) { await page.waitForSelector(selector, { timeout: 120_000 }); return text(selector); },
  // Puts the cursor behind a line that has these words.
  async cursor(words) {
    for (const line of await page.$$(".view-line")) {
      const found = await line.evaluate(it => it.textContent.replaceAll("\u00a0", " "));
      if (!found.includes(words)) continue;
      await line.click({ offset: { x: 5, y: 8 } });
      await page.keyboard.press("End");
      return true;
    }
    return false;
  },
  async keys(...words) { for (const word of words) await page.keyboard.type(word); },
  async press(...keys) {
    for (const key of keys) await page.keyboard.down(key);
    for (const key of keys.reverse()) await page.keyboard.up(key);
  },
  // Milliseconds from a key to new layouts.
  async key(sign) {
    await page.evaluate(() => {
      const place = document.getElementById("editor"), before = place.dataset.sent;
      self.took = new Promise(resolve => {
        let begun = 0;
        addEventListener("keydown", () => (begun = performance.now()), { capture: true, once: true });
        new MutationObserver((_, observer) => {
          const { sent, planned } = place.dataset;
          if (sent === before || planned !== sent) return;
          observer.disconnect();
          resolve(performance.now() - begun);
        }).observe(place, { attributes: true });
      });
    });
    await page.keyboard.type(sign);
    return page.evaluate(() => self.took);
  },
  async quiet() { await whole(); },
  async link() { await page.click("#link"); await pause(300); return page.evaluate(() => location.href); },
  async pause(milliseconds) { await pause(milliseconds); },
  async picture(path) { await pause(500); await page.screenshot({ path }); },
  wide: () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth),
  // The pages that the site's search finds.
  async search(word) {
    await page.evaluate(() => (document.querySelector("[data-md-component=search-query]").value = ""));
    await page.focus("[data-md-component=search-query]");
    await page.keyboard.type(word);
    await pause(1500);
    return page.$$eval(".md-search-result__link", found => found.map(it => it.getAttribute("href")));
  },
};

(async () => {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
  browser = await puppeteer.launch({ executablePath, headless: "new", args });
  const found = [];
  try {
    for (const [name, ...words] of JSON.parse(steps)) found.push((await STEPS[name](...words)) ?? null);
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify({ found, said, asked }));
})().catch(reason => { console.error(reason); process.exit(1); });
