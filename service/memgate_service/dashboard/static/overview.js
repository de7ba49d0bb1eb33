// @ts-check
/** The overview: texts, parts and the chart are updated as the server sends changes. */

import { axis, colour, hatched, keepDrawn, scaled, uPlot } from "./chart.js";
import { byId, listen, swap } from "./common.js";

const NAMES = ["admit", "uncertain", "reject", "failed"];

/** Minutes that a bar stands for, by the hours that are shown. @type {Record<number, number>} */
const STEPS = { 1: 1, 6: 5, 24: 20 };

/** @typedef {{ now: number, rows: number[][] }} Chart minutes since the epoch, and counts */

/** @type {Chart} */
const data = JSON.parse(byId("verdict-data").textContent ?? "");
/** @type {Map<number, number[]>} */
const minutes = new Map(data.rows.map(([minute, ...counts]) => [minute, counts]));
let now = data.now;
let hours = 24;

/** @returns {{ times: number[], counts: number[][] }} bars: when they begin, and each outcome */
function bars() {
  const step = STEPS[hours];
  const last = Math.floor(now / step) * step;
  const count = (hours * 60) / step;
  const times = Array.from({ length: count }, (_, at) => last - (count - 1 - at) * step);
  const counts = NAMES.map(() => new Array(count).fill(0));
  for (const [minute, row] of minutes) {
    const at = Math.floor((minute - times[0]) / step);
    if (at >= 0 && at < count) row.forEach((value, kind) => (counts[kind][at] += value));
  }
  return { times, counts };
}

/** @returns {uPlot.AlignedData} the bars, each outcome on top of the ones before, the last first */
function stacked() {
  const { times, counts } = bars();
  const sums = counts.map((_, kind) =>
    times.map((_, at) => counts.slice(0, kind + 1).reduce((sum, row) => sum + row[at], 0)));
  const seconds = times.map((minute) => minute * 60);
  return /** @type {uPlot.AlignedData} */ ([seconds, ...sums.reverse()]);
}

/** @param {number} width @param {number} height @returns {uPlot} */
function draw(width, height) {
  const order = [...NAMES].reverse();
  const step = () => STEPS[hours] * 60;
  return new uPlot(
    {
      width,
      height,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      hooks: { setCursor: [tellBar] },
      padding: [12, 20, 0, 0],
      scales: {
        x: { time: true, range: (_, low, high) => [low - step() / 2, high + step() / 2] },
        y: { range: (_, __, high) => [0, Math.max(4, high * 1.08)] },
      },
      axes: [
        axis({ grid: { show: false }, space: scaled(70), size: scaled(32), values: (_, splits) => splits.map(writeTime) }),
        axis({ size: scaled(46), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }),
      ],
      series: [
        {},
        ...order.map((name) => ({
          paths: uPlot.paths.bars?.({ size: [0.82, 40], align: 0 }),
          fill: (/** @type {uPlot} */ self) =>
            /** @type {string} */ (hatched(self.ctx, name, colour(`${name}-fill`))),
          stroke: () => colour("surface"),
          width: 0,
          points: { show: false },
        })),
      ],
    },
    stacked(),
    byId("verdicts"),
  );
}

/** Say what a bar stands for. @param {uPlot} self */
function tellBar(self) {
  const place = byId("verdict-at");
  const at = (self.cursor.left ?? -1) >= 0 ? self.cursor.idx : null;
  if (at === null || at === undefined) {
    place.textContent = "";
    return;
  }
  const { times, counts } = bars();
  const span = `${writeTime(times[at] * 60)} to ${writeTime((times[at] + STEPS[hours]) * 60)}`;
  const said = NAMES.map((name, kind) => [name === "failed" ? "no answer" : name, counts[kind][at]])
    .filter(([, count]) => count)
    .map(([name, count]) => `${name} ${count.toLocaleString("en")}`);
  place.textContent = `${span}: ${said.join(", ") || "nothing"}`;
}

/** @param {number} seconds @returns {string} */
function writeTime(seconds) {
  const moment = new Date(seconds * 1000);
  return moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

function fillTable() {
  const { times, counts } = bars();
  const rows = times
    .map((minute, at) => [minute, ...counts.map((row) => row[at])])
    .filter(([, ...values]) => values.some(Boolean))
    .reverse();
  const body = document.querySelector("#verdict-rows tbody");
  body?.replaceChildren(...rows.map(([minute, ...values]) => {
    const row = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = new Date(minute * 60_000).toLocaleString();
    const cells = values.map((value) => {
      const cell = document.createElement("td");
      cell.className = "number";
      cell.textContent = value.toLocaleString("en");
      return cell;
    });
    row.append(head, ...cells);
    return row;
  }));
}

const chart = keepDrawn(byId("verdicts"), draw);
fillTable();
performance.mark("overview-drawn");

function update() {
  chart.current().setData(stacked());
  fillTable();
}

for (const button of document.querySelectorAll("button[data-hours]")) {
  button.addEventListener("click", () => {
    hours = Number(button.getAttribute("data-hours"));
    for (const other of document.querySelectorAll("button[data-hours]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    update();
  });
}

/** @param {string} name @returns {(html: string) => void} */
const part = (name) => (html) => {
  const element = document.querySelector(`[data-part="${name}"]`);
  if (element) swap(element, html);
};

listen("/ui/events", {
  texts: (/** @type {Record<string, string>} */ texts) => {
    for (const element of document.querySelectorAll("[data-live]")) {
      const text = texts[element.getAttribute("data-live") ?? ""];
      if (text !== undefined && element.textContent !== text) element.textContent = text;
    }
  },
  chart: (/** @type {Chart} */ changed) => {
    now = changed.now;
    for (const [minute, ...counts] of changed.rows) minutes.set(minute, counts);
    update();
  },
  workers: part("workers"),
  callers: part("callers"),
  engines: part("engines"),
  decisions: part("decisions"),
});
