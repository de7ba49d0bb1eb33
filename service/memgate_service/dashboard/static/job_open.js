// @ts-check
/** The page of a job that has not ended: shows its progress, and becomes its answer. */

import { ask, byId, listen, swap } from "./common.js";

const page = byId("job");
const base = `/ui/jobs/${page.dataset.job}`;

listen(`/ui/watch?job=${page.dataset.job}`, {
  job: async (/** @type {{ state: string | null }} */ told) => {
    if (told.state === "queued" || told.state === "running") {
      swap(byId("progress"), await (await ask(`${base}/state`)).text());
    } else {
      location.reload();
    }
  },
});

const began = Date.parse(page.dataset.created ?? "");
setInterval(() => {
  const seconds = Math.max(0, (Date.now() - began) / 1000);
  byId("elapsed").textContent = `${seconds.toFixed(0)} s`;
}, 1000);
