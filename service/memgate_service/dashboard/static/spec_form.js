// @ts-check
/**
 * The form of Try it. The text of the spec is the only place where a job is kept: a change of the
 * form goes into the text, and a change of the text into the form. The server reads and writes YAML.
 */

import { ask, byId } from "./common.js";
import { makeSearchBox } from "./search_box.js";

const spec = /** @type {HTMLTextAreaElement} */ (byId("spec"));
const describe = /** @type {HTMLFieldSetElement} */ (byId("describe"));
const problem = byId("problem");
const controls = /** @type {(HTMLInputElement | HTMLSelectElement)[]} */ (
  [...describe.querySelectorAll("[data-field]")]);

/** How long somebody must not have typed before the form follows. */
const PAUSE_MS = 300;

/** @param {string} url @param {Record<string, string>} fields @returns {Promise<any>} */
async function send(url, fields) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, value);
  return (await ask(url, { method: "POST", body })).json();
}

/** @param {HTMLInputElement | HTMLSelectElement} control @param {string} value */
function show(control, value) {
  if (control instanceof HTMLSelectElement && ![...control.options].some((one) => one.value === value)) {
    control.add(new Option(value)); // one that the list does not have
  }
  control.value = value;
  control.dataset.shown = value;
}

/** The last question that was asked, or change that was typed; older answers are not used. */
let latest = 0;

/** Show in the form what is in the text. */
export async function followSpec() {
  const ticket = (latest += 1);
  const fields = await send("/ui/try/fields", { spec: spec.value }).catch(() => null);
  if (ticket !== latest || !fields) return;
  describe.dataset.state = "problem" in fields ? "unread" : "read";
  problem.textContent = fields.problem ? `The spec below cannot be read yet: ${fields.problem}` : "";
  if (fields.problem) return;
  for (const control of controls) {
    if (control !== document.activeElement) show(control, fields[control.dataset.field ?? ""] ?? "");
  }
}

/** Put a field of the form into the text. @param {HTMLInputElement | HTMLSelectElement} control */
async function fill(control) {
  if (control.value === control.dataset.shown) return;
  const ticket = (latest += 1);
  const answer = await send("/ui/try/fill", {
    field: control.dataset.field ?? "", value: control.value, spec: spec.value,
  }).catch((/** @type {Error} */ error) => ({ problem: error.message }));
  if (ticket !== latest) return;
  control.setAttribute("aria-invalid", String("problem" in answer));
  problem.textContent = answer.problem ?? "";
  if (answer.problem) return;
  control.dataset.shown = control.value;
  spec.value = answer.spec;
  await followSpec();
}

/** @type {Promise<import("./search_box.js").Choice[]> | null} */
let models = null;

function loadModels() {
  models ??= ask("/ui/try/models").then((answer) => answer.json()).catch(() => {
    models = null; // to be asked for again
    return [];
  });
  return models;
}

async function listGpus() {
  return [...byId("gpus").querySelectorAll("option")].map((one) => ({
    value: one.value, about: one.textContent ?? "",
  }));
}

const model = /** @type {HTMLInputElement} */ (byId("model"));
makeSearchBox(model, byId("model-found"), loadModels, () => void fill(model));
makeSearchBox(/** @type {HTMLInputElement} */ (byId("gpu")), byId("gpu-found"), listGpus, () => {});

for (const control of controls) {
  control.addEventListener("change", () => void fill(control));
  control.addEventListener("keydown", (event) => {
    if (!(event instanceof KeyboardEvent) || event.key !== "Enter" || event.defaultPrevented) return;
    event.preventDefault(); // it goes into the text; Ask is a button
    void fill(control);
  });
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
spec.addEventListener("input", () => {
  latest += 1; // an answer that is still to come is about another text
  clearTimeout(timer);
  timer = setTimeout(() => void followSpec(), PAUSE_MS);
});

void followSpec();
