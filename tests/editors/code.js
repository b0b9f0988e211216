// {address, folders: {open, broken}, file, mistake, fixed, pictures} as JSON -> what VS Code shows of a program, as JSON.
const { launch } = require("puppeteer-core");

const asked = JSON.parse(process.argv[2]);
const told = {};
let page;

const pause = seconds => new Promise(done => setTimeout(done, seconds * 1000));
const plain = text => text.replace(/\u00a0/g, " ").replace(/[\u200b-\u200f\u202a-\u202e]/g, "");
const picture = name => page.screenshot({ path: `${asked.pictures}/${name}.png` });

async function open(folder, file) {
  await page.goto(`${asked.address}/?folder=${folder}`, { waitUntil: "load" });
  await page.waitForSelector(".explorer-folders-view .label-name");
  await palette(file, "p");
  await page.waitForSelector(".view-lines .view-line");
}

// Runs a command, or opens a file, as a person does who types its name.
async function palette(text, key = "F1") {
  if (key === "F1") await page.keyboard.press("F1");
  else await chord("Control", key);
  await page.waitForSelector(".quick-input-widget .quick-input-list", { visible: true });
  await pick(text);
}

async function pick(text) {
  await page.keyboard.type(text);
  await page.waitForFunction(
    text => [...document.querySelectorAll(".quick-input-list .monaco-list-row")].some(row => row.textContent.replace(/\u00a0/g, " ").includes(text)),
    {}, text);
  await pause(0.3);
  await page.keyboard.press("Enter");
}

async function chord(held, key) {
  await page.keyboard.down(held);
  await page.keyboard.press(key);
  await page.keyboard.up(held);
}

// The lines that are shown, from the top: text with hints.
async function lines() {
  const found = await page.$$eval(".view-lines .view-line", all => all
    .map(line => [line.getBoundingClientRect().top, line.textContent])
    .sort((one, other) => one[0] - other[0]).map(([, text]) => text));
  return found.map(plain);
}

const lenses = async () => (await page.$$eval(".codelens-decoration", all => all.map(each => each.textContent))).map(plain);
const until = (test, ...given) => page.waitForFunction(test, { polling: 100 }, ...given);
const hasLine = text => until(text => document.querySelector(".view-lines").textContent.replace(/\u00a0/g, " ").includes(text), text);

async function lineOf(text) {
  for (const line of await page.$$(".view-lines .view-line"))
    if (plain(await line.evaluate(each => each.textContent)).includes(text)) return line;
  throw new Error(`no line has ${text}`);
}

// The middle of a word of a line.
async function placeOf(text, word) {
  const line = await lineOf(text);
  return line.evaluate((each, word) => {
    const walk = document.createTreeWalker(each, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      const at = node.data.replace(/\u00a0/g, " ").indexOf(word);
      if (at < 0) continue;
      const range = document.createRange();
      range.setStart(node, at);
      range.setEnd(node, at + word.length);
      const box = range.getBoundingClientRect();
      return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    }
    throw new Error(`no ${word}`);
  }, word);
}

async function click(text, word) {
  const { x, y } = await placeOf(text, word);
  await page.mouse.click(x, y);
}

// The colour of each text of the lines, by the text.
const colours = () => page.$$eval(".view-lines .view-line span:not(:has(span))", all =>
  all.map(each => [each.textContent.replace(/\u00a0/g, " ").trim(), getComputedStyle(each).color]).filter(([text]) => text));

// From now on each frame tells where lines and lenses are.
const watch = () => page.evaluate(() => {
  const seen = (window.seen = new Set());
  (function look() {
    if (window.seen !== seen) return;
    const tops = of => [...document.querySelectorAll(of)].map(each => Math.round(each.getBoundingClientRect().top)).sort((a, b) => a - b);
    seen.add(JSON.stringify([tops(".view-lines .view-line"), tops(".codelens-decoration")]));
    requestAnimationFrame(look);
  })();
});

const watched = () => page.evaluate(() => {
  const found = [...window.seen];
  window.seen = null;
  return found.map(each => JSON.parse(each));
});

async function shown() {
  await open(asked.folders.open, asked.file);
  await hasLine("@dp");
  await until(() => [...document.querySelectorAll(".codelens-decoration")].some(each => each.textContent.includes("ranks")));
  await pause(2);
  told.colours = await colours();
  told.hints = await lines();
  told.lenses = await lenses();
  await picture("hints");
}

async function mistaken() {
  const { line, word, typed } = asked.mistake;
  await click(line, word);
  await page.keyboard.press("End");
  await chord("Control", "ArrowLeft");
  await pause(1);
  await watch();
  await page.keyboard.type(typed);
  await page.waitForSelector(".squiggly-error");
  await pause(2);
  told.mistaken = await lines();
  told.mistaken_lenses = await lenses();
  await picture("mistake");
  await chord("Control", ".");
  await page.waitForSelector(".action-widget .monaco-list-row");
  await pause(0.5);
  told.fixes = (await page.$$eval(".action-widget .monaco-list-row", all => all.map(each => each.textContent))).map(plain);
  await picture("fix");
  await page.keyboard.press("Enter");
  await until(() => !document.querySelector(".squiggly-error"));
  await pause(2);
  told.fixed = await lines();
  told.tops = await watched();
}

async function hovered() {
  const { x, y } = await placeOf(...asked.hover);
  await page.mouse.move(x, y);
  await page.waitForSelector(".monaco-hover:not(.hidden) .hover-contents");
  await pause(1);
  told.hover = plain(await page.$eval(".monaco-hover:not(.hidden)", each => each.innerText));
  await picture("hover");
  await page.mouse.move(5, 5);
  await page.keyboard.press("Escape");
}

// The page in the panel, of which VS Code makes a new frame for each text, once a part of it has this text.
async function planned(text, part = ".line.here .code") {
  const read = async frame => (await frame.$eval(`.text ${part}`, each => each.textContent)).includes(text);
  for (let tries = 0; tries < 100; tries++) {
    for (const frame of page.frames()) if (await read(frame).catch(() => false)) return frame;
    await pause(0.2);
  }
  throw new Error(`the plan does not show ${text}`);
}

async function beside() {
  const [first, second, third, edit] = asked.follow;
  await click(...first);
  await palette("Shard: Show the plan beside the text");
  let frame = await planned(first[0]);
  await pause(1);
  told.plan = await frame.evaluate(() => document.body.innerText.slice(0, 400));
  await picture("plan");
  await click(...second);
  frame = await planned(second[0]);
  told.visible = await frame.evaluate(() => {
    const box = document.querySelector(".line.here").getBoundingClientRect();
    return box.top >= 0 && box.bottom <= innerHeight;
  });
  told.marked = await frame.evaluate(() => document.querySelectorAll(".line.marked").length);
  await pause(0.5);
  await picture("plan_follows");
  await frame.evaluate(() => document.querySelector(".text").scrollIntoView());
  const row = (await frame.$$(".text .line .code")).map(async each => [await each.evaluate(one => one.textContent), each]);
  const [, clicked] = (await Promise.all(row)).find(([text]) => text.includes(third[0]));
  await clicked.click();
  await pause(1);
  told.cursor = await page.$eval(".active-line-number", each => each.textContent);
  await edited(edit);
  await darkened();
}

async function edited([line, word, typed, text]) {
  await click(line, word);
  await page.keyboard.press("Home");
  await page.keyboard.type(typed);
  await planned(text, ".line:nth-child(20)");
  for (; (await lines()).some(each => /#(?! Enc)/.test(each)); await pause(0.5)) await chord("Control", "z");
  await planned(line, ".line:nth-child(20)");
}

async function darkened() {
  await palette("Toggle between Light/Dark Themes");
  await pause(4);
  const frame = await planned("");
  const back = await frame.evaluate(() => getComputedStyle(document.body).backgroundColor);
  told.dark = { back, text: await frame.evaluate(() => getComputedStyle(document.body).color) };
  await picture("dark");
  await palette("Toggle between Light/Dark Themes");
  await pause(1);
}

async function chosen() {
  await palette("Shard: Choose a strategy");
  await page.waitForSelector(".quick-input-widget", { visible: true });
  await pause(0.7);
  told.strategies = (await page.$$eval(".quick-input-list .monaco-list-row", all => all.map(each => each.textContent))).map(plain);
  await picture("choose");
  await pick(asked.strategy);
  await until(name => [...document.querySelectorAll(".codelens-decoration")].some(each => each.textContent.includes(name)), asked.lens);
  await palette("Shard: Choose the number of ranks");
  await page.waitForSelector(".quick-input-widget input", { visible: true });
  await pause(0.5);
  await chord("Control", "a");
  await page.keyboard.type(String(asked.ranks));
  await page.keyboard.press("Enter");
  await until(ranks => [...document.querySelectorAll(".codelens-decoration")].every(each => each.textContent.includes(ranks)), `${asked.ranks} ranks`);
  await pause(1);
  told.chosen = { lines: await lines(), lenses: await lenses() };
  await picture("chosen");
  await page.click(".codelens-decoration a");
  await hasLine("B over dp");
  await until(() => !document.querySelector(".codelens-decoration").textContent.includes("choose"));
  told.clicked = await lenses();
}

async function missing() {
  await open(asked.folders.broken, asked.file);
  await page.waitForSelector(".notification-list-item-message");
  await pause(1);
  told.missing = (await page.$$eval(".notification-list-item-message", all => all.map(each => each.textContent))).map(plain);
  await picture("missing");
}

async function main() {
  const options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
  const browser = await launch({ executablePath: asked.chromium, headless: true, args: options });
  page = await browser.newPage();
  page.setDefaultTimeout(60_000);
  await page.setViewport({ width: 1280, height: 900 });
  told.elsewhere = [];
  page.on("request", request => /^(http|ws)/.test(request.url()) && !request.url().startsWith(asked.address) && told.elsewhere.push(request.url()));
  const steps = { shown, mistaken, hovered, beside, chosen, missing };
  for (const [name, step] of Object.entries(steps)) {
    if (asked.only && !asked.only.includes(name)) continue;
    await step().catch(async error => {
      told.failed = `${name}: ${error.stack}`;
      await picture("failed");
    });
    if (told.failed) break;
  }
  console.log(JSON.stringify(told));
  await browser.close();
}
main();
