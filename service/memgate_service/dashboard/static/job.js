// @ts-check
/** The page of a job: its curve, its layers, and what would make it fit as the answers come in. */

import { ask, byId, listen, showFailure, swap } from "./common.js";
import { Icicle } from "./icicle.js";
import { Timeline } from "./timeline.js";

const page = byId("job");
const base = `/ui/jobs/${page.dataset.job}`;

async function drawTimeline() {
  const root = document.getElementById("timeline");
  if (!root) return;
  try {
    // as the page has it preloaded
    const view = await (await ask(`${base}/timeline?points=2000`)).json();
    const chart = new Timeline(root, byId("readout"), `${base}/timeline`, view);
    byId("zoom-in").addEventListener("click", () => chart.zoomBy(0.5));
    byId("zoom-out").addEventListener("click", () => chart.zoomBy(2));
    byId("zoom-peak").addEventListener("click", () => chart.zoomToPeak());
    byId("zoom-all").addEventListener("click", () => chart.zoomOut());
  } catch (error) {
    showFailure(root, error);
  }
}

function drawLayers() {
  const source = document.getElementById("layer-data");
  if (source) new Icicle(byId("icicle"), byId("icicle-says"), JSON.parse(source.textContent ?? ""));
}

/** @param {{ html: Record<string, string>, waiting: string[] }} known */
function showAdvice(known) {
  swap(byId("advice"), known.html.advice);
  swap(byId("strip"), known.html.strip);
}

async function adviseLive() {
  const place = document.getElementById("advice");
  if (!place || page.dataset.maySubmit !== "yes") return;
  try {
    const known = await (await ask(`${base}/advice`, { method: "POST" })).json();
    showAdvice(known);
    if (!known.waiting.length) return;
    const open = new Set(known.waiting);
    const query = known.waiting.map((/** @type {string} */ id) => `job=${id}`).join("&");
    const stop = listen(`/ui/watch?${query}`, {
      job: async (/** @type {{ job: string, state: string }} */ told) => {
        if (told.state === "queued") return;
        if (told.state !== "running") open.delete(told.job);
        showAdvice(await (await ask(`${base}/advice`)).json());
        if (!open.size) {
          stop();
          page.dataset.advised = "yes";
        }
      },
    });
  } catch (error) {
    showFailure(byId("advice-failed"), error);
  }
}

/** The largest batch that fits is found after the decision: show it when it is there. */
async function followExplanation() {
  const place = document.getElementById("explanation");
  try {
    while (place?.dataset.pending) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      const known = await (await ask(`${base}/advice`)).json();
      if (!known.is_advice_pending) delete place.dataset.pending;
      swap(place, known.html.explanation);
    }
  } catch {
    // the verdict stands without it, and a reload asks again
  }
}

void drawTimeline();
drawLayers();
void adviseLive();
void followExplanation();
