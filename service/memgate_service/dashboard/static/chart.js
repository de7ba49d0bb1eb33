// @ts-check
/** What the charts share: colours of the theme, marks that need no colour, axes, and their size. */

import uPlot from "./vendor/uPlot.esm.js";

export const MIB = 1024 ** 2;
export const GIB = 1024 ** 3;

/** What was looked up for this theme: a chart asks hundreds of times. @type {Map<string, string>} */
const colours = new Map();
document.addEventListener("themechange", () => colours.clear());

/** @param {string} name @returns {string} */
export function colour(name) {
  let found = colours.get(name);
  if (found === undefined) {
    found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    colours.set(name, found);
  }
  return found;
}

/** @returns {number} pixels of a rem: 15, and more on a wall screen */
function rem() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize);
}

/** @param {number} pixels @returns {number} as many as that is where letters are larger */
export function scaled(pixels) {
  return Math.round((pixels * rem()) / 15);
}

/** @returns {number} pixels of a canvas for one that is drawn: marks grow with letters */
export function penScale() {
  return (devicePixelRatio * rem()) / 15;
}

/** @returns {string} the font of axes and labels */
export function font() {
  const size = rem();
  return `${Math.round(size * 0.82)}px ${getComputedStyle(document.body).fontFamily}`;
}

/** Lines drawn over a colour, as in the page's own patterns. @type {Record<string, number[][]>} */
const HATCHES = {
  optimizer_state: [[-2, 2, 2, -2], [0, 8, 8, 0], [6, 10, 10, 6]],
  gradients: [[-2, 6, 2, 10], [0, 0, 8, 8], [6, -2, 10, 2]],
  batch: [[4, 0, 4, 8]],
  temporary: [[0, 4, 8, 4]],
  other: [[4, 2, 4, 6]],
  fragmentation: [[0, 4, 8, 4], [4, 0, 4, 8]],
  uncertain: [[-2, 2, 2, -2], [0, 8, 8, 0], [6, 10, 10, 6]],
  reject: [[-2, 6, 2, 10], [0, 0, 8, 8], [6, -2, 10, 2]],
  failed: [[0, 4, 8, 4]],
};

/**
 * Make a fill that differs in its lines as well as in its colour.
 * @param {CanvasRenderingContext2D} context @param {string} name @param {string} fill
 * @returns {CanvasPattern | string}
 */
export function hatched(context, name, fill) {
  const scale = devicePixelRatio;
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(8 * scale);
  const pen = tile.getContext("2d");
  if (!pen) return fill;
  pen.scale(tile.width / 8, tile.height / 8);
  pen.fillStyle = fill;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = pen.fillStyle = colour("ink");
  pen.lineWidth = 1.4;
  for (const [x, y, toX, toY] of HATCHES[name] ?? []) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(toX, toY);
    pen.stroke();
  }
  if (name === "workspace") {
    pen.beginPath();
    pen.arc(4, 4, 1.5, 0, 2 * Math.PI);
    pen.fill();
  }
  return context.createPattern(tile, "repeat") ?? fill;
}

/** @param {number} bytes @returns {string} a size as the server writes it */
export function writeSize(bytes) {
  const size = Math.abs(bytes);
  const sign = bytes < 0 ? "-" : "";
  if (size <= 1024) return `${sign}${size} bytes`;
  if (size <= MIB) return `${sign}${(size / 1024).toFixed(2)} KiB`;
  if (size <= GIB) return `${sign}${(size / MIB).toFixed(2)} MiB`;
  return `${sign}${(size / GIB).toFixed(2)} GiB`;
}

/** @param {Partial<uPlot.Axis>} more @returns {uPlot.Axis} */
export function axis(more) {
  return {
    stroke: () => colour("muted"),
    space: scaled(34),
    font: font(),
    labelFont: font(),
    grid: { stroke: () => colour("line"), width: 1 },
    ticks: { stroke: () => colour("line"), width: 1, size: 4 },
    ...more,
  };
}

/**
 * Draw a chart into an element, and again when its size or the theme changes.
 * @param {HTMLElement} root
 * @param {(width: number, height: number) => uPlot} make
 * @returns {{ current: () => uPlot, redraw: () => void }}
 */
export function keepDrawn(root, make) {
  /** @type {uPlot} */
  let chart;
  const draw = () => {
    chart?.destroy();
    chart = make(root.clientWidth, root.clientHeight);
  };
  draw();
  new ResizeObserver(() => {
    if (chart.width !== root.clientWidth || chart.height !== root.clientHeight) {
      chart.setSize({ width: root.clientWidth, height: root.clientHeight });
    }
  }).observe(root);
  document.addEventListener("themechange", draw);
  return { current: () => chart, redraw: draw };
}

export { uPlot };
