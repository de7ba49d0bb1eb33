// @ts-check
/** Predicted against measured, on two scales that double: a job is a point. */

import { axis, colour, GIB, keepDrawn, penScale, scaled, uPlot } from "./chart.js";
import { ask, byId, showFailure } from "./common.js";

/** @typedef {{ within: number[][], beyond: number[][] }} Points pairs: measured, predicted */

/** @param {Points} points @returns {[number, number]} powers of two that hold all */
function bounds(points) {
  const sizes = [...points.within, ...points.beyond].flat().map((size) => size / GIB);
  if (!sizes.length) return [0.5, 64];
  return [2 ** Math.floor(Math.log2(Math.min(...sizes))), 2 ** Math.ceil(Math.log2(Math.max(...sizes)))];
}

/**
 * @param {HTMLElement} root @param {Points} points
 * @param {number} width @param {number} height @returns {uPlot}
 */
function draw(root, points, width, height) {
  const [low, high] = bounds(points);
  const range = () => /** @type {[number, number]} */ ([low, high]);
  const powers = () => {
    const found = [];
    for (let size = low; size <= high; size *= 2) found.push(size);
    return found;
  };
  const doubling = { distr: /** @type {3} */ (3), log: /** @type {2} */ (2), time: false, range };
  const write = (/** @type {uPlot} */ _, /** @type {(number | null)[]} null where there is no room */ splits) =>
    splits.map((size) => (size === null ? "" : size < 1 ? size.toFixed(2) : size.toFixed(0)));
  return new uPlot(
    {
      width,
      height,
      legend: { show: false },
      cursor: { show: false },
      padding: [12, 16, 0, 0],
      scales: { x: doubling, y: doubling },
      axes: [
        axis({ label: "measured, GiB", labelSize: scaled(20), size: scaled(32), splits: powers, values: write }),
        axis({ label: "predicted, GiB", labelSize: scaled(22), size: scaled(52), splits: powers, values: write }),
      ],
      series: [{}, { stroke: () => colour("strong-line"), width: 1, dash: [6, 4], points: { show: false } }],
      hooks: { draw: [(self) => mark(self, points)] },
    },
    [[low, high], [low, high]],
    root,
  );
}

/** @param {uPlot} self @param {Points} points */
function mark(self, points) {
  const { ctx } = self;
  const radius = 3.5 * penScale();
  /** @param {number[]} pair @returns {[number, number]} */
  const place = ([measured, predicted]) => [
    self.valToPos(measured / GIB, "x", true),
    self.valToPos(predicted / GIB, "y", true),
  ];
  ctx.save();
  ctx.setLineDash([]);
  ctx.lineWidth = 1.4 * penScale();
  ctx.strokeStyle = colour("accent");
  for (const [x, y] of points.within.map(place)) {
    ctx.beginPath();
    ctx.arc(x, y, radius, 0, 2 * Math.PI);
    ctx.stroke();
  }
  ctx.strokeStyle = colour("reject");
  for (const [x, y] of points.beyond.map(place)) {
    ctx.beginPath();
    ctx.moveTo(x - radius, y - radius);
    ctx.lineTo(x + radius, y + radius);
    ctx.moveTo(x - radius, y + radius);
    ctx.lineTo(x + radius, y - radius);
    ctx.stroke();
  }
  ctx.restore();
}

const root = byId("scatter");
try {
  /** @type {Points} */
  const points = await (await ask("/ui/accuracy/points")).json();
  keepDrawn(root, (width, height) => draw(root, points, width, height));
  root.dataset.points = String(points.within.length + points.beyond.length);
} catch (error) {
  showFailure(root, error);
}
