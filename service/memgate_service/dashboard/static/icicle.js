// @ts-check
/** The layers of a model as an icicle: each as wide as what it held, with its children below. */

import { writeSize } from "./chart.js";

/** @typedef {{ name: string, size_bytes: number, children: Layer[] }} Layer */
/** @typedef {{ layer: Layer, path: string, depth: number, begin: number, isRest: boolean }} Cell */

const ROW_REM = 1.75;
const MAX_ROWS = 7;

export class Icicle {
  /** @param {HTMLElement} root @param {HTMLElement} says @param {Layer} whole */
  constructor(root, says, whole) {
    this.root = root;
    this.says = says;
    this.whole = whole;
    this.total = whole.size_bytes || 1;
    /** @type {{ layer: Layer, path: string }[]} what was gone into */
    this.trail = [{ layer: whole, path: "" }];
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.draw();
  }

  /** @returns {Cell[]} */
  cells() {
    const { layer: top, path } = this.trail[this.trail.length - 1];
    /** @type {Cell[]} */
    const found = [];
    /** @param {Layer} layer @param {string} at @param {number} depth @param {number} begin */
    const walk = (layer, at, depth, begin) => {
      found.push({ layer, path: at, depth, begin, isRest: / smaller$|^in no layer$/.test(layer.name) });
      if (depth + 1 >= MAX_ROWS) return;
      let next = begin;
      for (const child of layer.children) {
        walk(child, at ? `${at}.${child.name}` : child.name, depth + 1, next);
        next += child.size_bytes;
      }
    };
    walk(top, path, 0, 0);
    return found;
  }

  draw() {
    const cells = this.cells();
    const top = cells[0].layer;
    const rows = 1 + Math.max(...cells.map((cell) => cell.depth));
    this.root.style.height = `${rows * ROW_REM}rem`;
    this.root.replaceChildren(...cells.map((cell) => this.make(cell, top.size_bytes || 1)));
    this.say(cells[0]);
  }

  /** @param {Cell} cell @param {number} width @returns {HTMLButtonElement} */
  make(cell, width) {
    const button = document.createElement("button");
    button.type = "button";
    const name = cell.depth === 0 && this.trail.length > 1 ? `← ${cell.path}` : cell.layer.name;
    button.textContent = name || "all layers";
    button.setAttribute("aria-label", this.describe(cell));
    button.tabIndex = cell.depth === 0 ? 0 : -1;
    button.dataset.path = cell.path;
    button.className = cell.isRest ? "rest" : "";
    button.style.left = `${(100 * cell.begin) / width}%`;
    button.style.width = `${(100 * cell.layer.size_bytes) / width}%`;
    button.style.top = `${cell.depth * ROW_REM}rem`;
    button.style.setProperty("--tint", `${12 + ((cell.depth * 9) % 36)}%`);
    const pixels = (this.root.clientWidth * cell.layer.size_bytes) / width;
    button.classList.toggle("slim", pixels < 12 + 7 * button.textContent.length);
    button.addEventListener("mouseenter", () => this.say(cell));
    button.addEventListener("focus", () => this.say(cell));
    button.addEventListener("click", () => this.go(cell));
    return button;
  }

  /** @param {Cell} cell @returns {string} */
  describe(cell) {
    const share = ((100 * cell.layer.size_bytes) / this.total).toFixed(1);
    return `${cell.path || "all layers"}: ${writeSize(cell.layer.size_bytes)}, ${share} % of what layers hold`;
  }

  /** @param {Cell} cell */
  say(cell) {
    this.says.textContent = this.describe(cell);
  }

  /** Go into a layer, or out of the one at the top. @param {Cell} cell */
  go(cell) {
    if (cell.depth === 0) {
      if (this.trail.length > 1) this.trail.pop();
    } else if (cell.layer.children.length) {
      this.trail.push({ layer: cell.layer, path: cell.path });
    } else return;
    this.draw();
    this.buttons()[0]?.focus();
  }

  /** @returns {HTMLButtonElement[]} */
  buttons() {
    return [...this.root.querySelectorAll("button")];
  }

  /** One tab stop; arrows walk in the order of the tree. @param {KeyboardEvent} event */
  onKey(event) {
    const buttons = this.buttons();
    const at = buttons.findIndex((button) => button === document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
      Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    buttons[at].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
    event.preventDefault();
  }
}
