// @ts-check
/** What if: asks about the job with something changed, and shows the answers side by side. */

import { ask, byId, listen, showFailure } from "./common.js";

const base = byId("job").dataset.job ?? "";
const form = /** @type {HTMLFormElement} */ (byId("what-if"));
const table = byId("compared");
const mistakes = byId("mistakes");

/** @param {string} job @returns {Element | null} */
const rowOf = (job) => table.querySelector(`[data-compared="${job}"]`);

/** Put a row in its place, or at the end. @param {string} job @param {string} html */
function place(job, html) {
  const made = document.createElement("tbody");
  made.innerHTML = html;
  const row = made.querySelector("tr");
  if (!row) return;
  const known = rowOf(job);
  if (known) known.replaceWith(row);
  else table.append(row);
}

/** @param {string} job */
function watch(job) {
  const stop = listen(`/ui/watch?job=${job}`, {
    job: async (/** @type {{ state: string }} */ told) => {
      if (told.state === "queued" || told.state === "running") return;
      stop();
      place(job, await (await ask(`/ui/jobs/${job}/compared?base=${base}`)).text());
    },
  });
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  mistakes.replaceChildren();
  try {
    const answer = await ask(form.action, { method: "POST", body: new FormData(form) });
    if (answer.status === 422) {
      mistakes.innerHTML = await answer.text();
      return;
    }
    const asked = await answer.json();
    place(asked.job, asked.html);
    if (asked.is_open) watch(asked.job);
  } catch (error) {
    showFailure(mistakes, error);
  }
});
