// @ts-check
/** The memory of a job over time: areas by category, what is reserved, phases, capacity, peak. */

import { axis, colour, font, GIB, hatched, keepDrawn, MIB, penScale, scaled,
  uPlot, writeSize } from "./chart.js";
import { ask } from "./common.js";

/** From the bottom up, what stays longest first. */
const ORDER = ["parameters", "optimizer_state", "workspace", "gradients", "batch", "activations",
  "temporary", "other"];

/**
 * @typedef {object} View what the server sends: a curve, or a part of it, thinned
 * @property {number} num_events
 * @property {number} peak_event
 * @property {number | null} oom_event
 * @property {number[]} events
 * @property {number[]} reserved
 * @property {number[]} allocated
 * @property {Record<string, number[]>} categories
 * @property {{ phase: string, begin: number, end: number }[]} phases
 * @property {number} capacity_bytes
 * @property {string} gpu
 * @property {string} decision
 */

export class Timeline {
  /**
   * @param {HTMLElement} root @param {HTMLElement} readout @param {string} url @param {View} view
   */
  constructor(root, readout, url, view) {
    this.root = root;
    this.readout = readout;
    this.url = url;
    this.whole = view;
    this.view = view;
    this.range = [0, Math.max(1, view.num_events)];
    const top = Math.max(...view.reserved, 1);
    this.unit = top > GIB ? "GiB" : "MiB";
    this.divisor = top > GIB ? GIB : MIB;
    this.peak = view.reserved[view.events.indexOf(view.peak_event)] ?? 0;
    const isNear = view.capacity_bytes <= 1.6 * top;
    this.top = (1.1 * Math.max(top, isNear ? view.capacity_bytes : 0)) / this.divisor;
    this.names = ORDER.filter((name) => name in view.categories);
    this.num_fetched = 0;
    this.chart = keepDrawn(root, (width, height) => this.make(width, height));
    this.tell(view.events.indexOf(view.peak_event));
    root.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** @returns {uPlot.AlignedData} events; the upper edge of each area, the topmost first; reserved */
  data() {
    const { view } = this;
    const last = view.events.length - 1;
    // each point holds until the next event that is shown; the last one for itself
    const ends = (/** @type {number[]} */ values) => [...values, values[last] ?? 0];
    const scaled = (/** @type {number[]} */ values) => ends(values).map((v) => v / this.divisor);
    const edges = [];
    let below = new Array(view.events.length).fill(0);
    for (const name of this.names) {
      below = below.map((size, at) => size + view.categories[name][at]);
      edges.push(scaled(below));
    }
    if (!edges.length) edges.push(scaled(view.allocated));
    const events = [...view.events, Math.max(view.num_events, (view.events[last] ?? 0) + 1)];
    return /** @type {uPlot.AlignedData} */ ([events, ...edges.reverse(), scaled(view.reserved)]);
  }

  /** @param {number} width @param {number} height @returns {uPlot} */
  make(width, height) {
    const paths = uPlot.paths.stepped?.({ align: 1 });
    const areas = this.names.length ? [...this.names].reverse() : ["activations"];
    return new uPlot(
      {
        width,
        height,
        legend: { show: false },
        padding: [scaled(22), 12, 0, 0],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
        scales: {
          x: { time: false, range: () => /** @type {[number, number]} */ (this.range) },
          y: { range: () => [0, this.top] },
        },
        axes: [
          axis({
            label: "event: an allocation, or a free",
            labelSize: scaled(20),
            size: scaled(32),
            space: scaled(64),
            grid: { show: false },
            values: (_, splits) => splits.map((at) => at.toLocaleString("en")),
          }),
          axis({ label: this.unit, labelSize: scaled(22), size: scaled(52) }),
        ],
        series: [
          {},
          ...areas.map((name) => ({
            paths,
            // a peak of one event is narrower than a pixel: only its edge is seen
            width: 1,
            stroke: () => colour(`cat-${name}`),
            points: { show: false },
            fill: (/** @type {uPlot} */ self) =>
              /** @type {string} */ (hatched(self.ctx, name, colour(`cat-${name}`))),
          })),
          { paths, width: 1.6 * (penScale() / devicePixelRatio), points: { show: false }, stroke: () => colour("reserved") },
        ],
        hooks: {
          drawClear: [(self) => this.shadePhases(self)],
          draw: [(self) => this.mark(self)],
          setCursor: [(self) => this.onCursor(self)],
          setSelect: [(self) => this.onSelect(self)],
        },
      },
      this.data(),
      this.root,
    );
  }

  /** @param {uPlot} self */
  shadePhases(self) {
    const { ctx, bbox } = self;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    ctx.font = font().replace(/^[\d.]+px/, (size) => `${parseFloat(size) * devicePixelRatio}px`);
    ctx.textAlign = "center";
    const width = Object.fromEntries(
      ["forward", "backward", "optimizer"].map((name) => [name, ctx.measureText(name).width]));
    for (const { phase, begin, end } of this.whole.phases) {
      const left = Math.max(bbox.left, self.valToPos(begin, "x", true));
      const right = Math.min(bbox.left + bbox.width, self.valToPos(end, "x", true));
      if (right <= left || phase === "between") continue;
      ctx.fillStyle = colour(`phase-${phase}`);
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      if (width[phase] + 6 < right - left) {
        ctx.fillStyle = colour("muted");
        ctx.fillText(phase, (left + right) / 2, bbox.top - 6 * penScale());
      }
    }
    ctx.restore();
  }

  /** Draw what stands above the areas: capacity, peak, where it dies. @param {uPlot} self */
  mark(self) {
    const { ctx, bbox } = self;
    const dpr = penScale();
    ctx.save();
    ctx.font = font().replace(/^[\d.]+px/, (size) => `${parseFloat(size) * devicePixelRatio}px`);
    ctx.lineWidth = 1.6 * dpr;
    const capacity = this.whole.capacity_bytes / this.divisor;
    const isShown = capacity <= this.top;
    const short = `${this.whole.gpu}: ${writeSize(this.whole.capacity_bytes)}`;
    const long = `${short} besides the CUDA context`;
    const limit = ctx.measureText(long).width < bbox.width / 2 ? long : short;
    if (isShown) {
      const y = self.valToPos(capacity, "y", true);
      ctx.strokeStyle = colour("reject");
      ctx.setLineDash([7 * dpr, 5 * dpr]);
      line(ctx, bbox.left, y, bbox.left + bbox.width, y);
      ctx.setLineDash([]);
      label(ctx, limit, bbox.left + bbox.width - 8 * dpr, y - 9 * dpr, "right",
        colour("reject"), bbox);
    } else {
      label(ctx, `↑ ${limit}`, bbox.left + 8 * dpr, bbox.top + 16 * dpr, "left",
        colour("muted"), bbox);
    }
    if (this.whole.oom_event !== null) {
      const x = self.valToPos(this.whole.oom_event, "x", true);
      if (x >= bbox.left && x <= bbox.left + bbox.width) {
        ctx.strokeStyle = colour("reject");
        line(ctx, x, bbox.top, x, bbox.top + bbox.height);
        const side = x > bbox.left + bbox.width * 0.7 ? "right" : "left";
        const fate = this.whole.decision === "reject" ? "out of memory here"
          : "may run out of memory here";
        label(ctx, fate, x + (side === "left" ? 6 : -6) * dpr,
          bbox.top + (isShown ? 14 : 32) * dpr, side, colour("reject"), bbox);
      }
    }
    const x = self.valToPos(this.whole.peak_event, "x", true);
    if (x >= bbox.left && x <= bbox.left + bbox.width) {
      const y = self.valToPos(this.peak / this.divisor, "y", true);
      ctx.fillStyle = colour("reserved");
      ctx.strokeStyle = colour("surface");
      ctx.beginPath();
      ctx.arc(x, y, 4.5 * dpr, 0, 2 * Math.PI);
      ctx.fill();
      ctx.stroke();
      const side = x > bbox.left + bbox.width * 0.8 ? "right" : "left";
      label(ctx, `peak ${writeSize(this.peak)}`, x + (side === "left" ? 8 : -8) * dpr, y - 8 * dpr,
        side, colour("text"), bbox);
    }
    ctx.restore();
    if (!this.root.dataset.drawn) performance.mark("timeline-drawn");
    this.root.dataset.drawn = "yes";
  }

  /** @param {uPlot} self */
  onCursor(self) {
    const at = self.cursor.left !== undefined && self.cursor.left >= 0 ? self.cursor.idx : null;
    if (at === null || at === undefined) this.tell(this.view.events.indexOf(this.whole.peak_event));
    else this.tell(Math.min(at, this.view.events.length - 1));
  }

  /** Say what was held after an event, by its place among those shown. @param {number} at */
  tell(at) {
    if (at < 0) return;
    const event = this.view.events[at];
    const span = this.whole.phases.find(({ begin, end }) => begin <= event && event < end);
    const caption = this.readout.querySelector("caption");
    if (caption) {
      const strong = document.createElement("strong");
      strong.textContent = event === this.whole.peak_event ? "At the peak" : "At the cursor";
      const where = `event ${event.toLocaleString("en")}${span ? `, ${span.phase}` : ""}`;
      caption.replaceChildren(strong, where);
    }
    for (const cell of this.readout.querySelectorAll("[data-series]")) {
      const name = cell.getAttribute("data-series") ?? "";
      const series = name === "reserved" ? this.view.reserved
        : name === "allocated" ? this.view.allocated : this.view.categories[name];
      cell.textContent = series ? writeSize(series[at]) : "-";
    }
  }

  /** @param {uPlot} self */
  onSelect(self) {
    if (self.select.width < 8) return;
    const begin = self.posToVal(self.select.left, "x");
    const end = self.posToVal(self.select.left + self.select.width, "x");
    self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    void this.zoomTo(begin, end);
  }

  /** Look at a part; what is finer comes from the server. @param {number} begin @param {number} end */
  async zoomTo(begin, end) {
    const least = 16;
    const count = Math.max(1, this.whole.num_events);
    const middle = (begin + end) / 2;
    const half = Math.max(least, end - begin) / 2;
    const from = Math.max(0, Math.floor(middle - half));
    const to = Math.min(count, Math.ceil(middle + half));
    this.range = [from, Math.max(to, from + 1)];
    this.root.dataset.range = this.range.join("-");
    this.chart.current().setScale("x", { min: this.range[0], max: this.range[1] });
    const asked = `${this.url}?begin=${from}&end=${to}&points=${this.points()}`;
    const isWhole = from === 0 && to === count;
    const view = isWhole ? this.whole : await (await ask(asked)).json();
    if (this.range[0] !== from) return; // somebody has zoomed again in the meantime
    this.view = view;
    this.num_fetched += 1;
    this.chart.current().setData(this.data(), false);
    this.chart.current().redraw();
    this.root.dataset.points = String(view.events.length);
  }

  /** @returns {number} as many points as there is room for */
  points() {
    return Math.min(4000, Math.max(500, Math.round(this.root.clientWidth * 1.5)));
  }

  /** @param {number} factor */
  zoomBy(factor) {
    const [from, to] = this.range;
    const middle = (from + to) / 2;
    const half = ((to - from) / 2) * factor;
    void this.zoomTo(middle - half, middle + half);
  }

  zoomToPeak() {
    const half = Math.max(50, this.whole.num_events / 40);
    void this.zoomTo(this.whole.peak_event - half, this.whole.peak_event + half);
  }

  zoomOut() {
    void this.zoomTo(0, this.whole.num_events);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const self = this.chart.current();
    const step = event.shiftKey ? 20 : 1;
    const at = self.cursor.idx ?? this.view.events.indexOf(this.whole.peak_event);
    /** @param {number} to */
    const move = (to) => {
      const place = Math.max(0, Math.min(this.view.events.length - 1, to));
      self.setCursor({ left: self.valToPos(this.view.events[place], "x") + 0.01, top: 10 });
    };
    if (event.key === "ArrowRight") move(at + step);
    else if (event.key === "ArrowLeft") move(at - step);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(this.view.events.length - 1);
    else if (event.key === "p") move(this.view.events.indexOf(this.whole.peak_event));
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") this.zoomOut();
    else return;
    event.preventDefault();
  }
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} x @param {number} y @param {number} toX @param {number} toY
 */
function line(ctx, x, y, toX, toY) {
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}

/**
 * Write on the chart, with a background behind the letters.
 * @param {CanvasRenderingContext2D} ctx @param {string} text @param {number} x @param {number} y
 * @param {CanvasTextAlign} align @param {string} ink @param {uPlot.BBox} bbox
 */
function label(ctx, text, x, y, align, ink, bbox) {
  const dpr = penScale();
  const width = ctx.measureText(text).width;
  const left = align === "left" ? x : x - width;
  const high = 12 * dpr;
  const top = Math.max(bbox.top + high, y);
  ctx.globalAlpha = 0.86;
  ctx.fillStyle = colour("surface");
  ctx.fillRect(left - 4 * dpr, top - high, width + 8 * dpr, high + 4 * dpr);
  ctx.globalAlpha = 1;
  ctx.textAlign = "left";
  ctx.fillStyle = ink;
  ctx.fillText(text, left, top);
}
