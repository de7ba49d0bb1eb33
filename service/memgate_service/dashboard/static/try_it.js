// @ts-check
/** Try it: a spec or a trace, pasted or dropped, is sent and becomes the page of a job. */

import { ask, byId, showFailure } from "./common.js";
import { followSpec } from "./spec_form.js";

const form = /** @type {HTMLFormElement} */ (byId("try"));
const spec = /** @type {HTMLTextAreaElement} */ (byId("spec"));
const file = /** @type {HTMLInputElement} */ (byId("file"));
const drop = byId("drop");
const chosen = byId("chosen");
const mistakes = byId("mistakes");
const button = /** @type {HTMLButtonElement} */ (byId("ask"));
const forget = /** @type {HTMLButtonElement} */ (byId("forget"));

/** Longer files are not specs. */
const MAX_SPEC_BYTES = 256 * 1024;

/** @type {File | null} */
let trace = null;

/** @param {File} given @returns {Promise<boolean>} a trace, a memory snapshot, a timeline file, or compressed */
async function isTrace(given) {
  if (given.size > MAX_SPEC_BYTES || /\.gz$/i.test(given.name)) return true;
  const [first] = new Uint8Array(await given.slice(0, 1).arrayBuffer());
  return first === 0x80 || first === 0x89 || (await given.text()).includes('"traceEvents"');
}

/** @param {File} given */
async function take(given) {
  mistakes.replaceChildren();
  if (await isTrace(given)) {
    trace = given;
    chosen.textContent = `File: ${given.name}, ${(given.size / 1024).toLocaleString("en", { maximumFractionDigits: 0 })} KiB. It is asked about instead of the spec.`;
  } else {
    trace = null;
    spec.value = await given.text();
    void followSpec();
    chosen.textContent = `Spec: ${given.name}, now above.`;
  }
  spec.disabled = trace !== null;
  forget.hidden = trace === null;
}

forget.addEventListener("click", () => {
  trace = null;
  file.value = "";
  spec.disabled = false;
  forget.hidden = true;
  chosen.textContent = "No file.";
  spec.focus();
});

file.addEventListener("change", () => {
  if (file.files?.[0]) void take(file.files[0]);
});

for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) drop.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  const given = event.dataTransfer?.files[0];
  if (given) void take(given);
});

/**
 * Send a trace; only the old XMLHttpRequest reports upload progress.
 * @param {FormData} body @returns {Promise<{ status: number, text: string }>}
 */
function upload(body) {
  const bar = /** @type {HTMLProgressElement} */ (byId("sent"));
  byId("sending").hidden = false;
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/ui/try/trace");
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) bar.value = (100 * event.loaded) / event.total;
    });
    request.addEventListener("load", () =>
      resolve({ status: request.status, text: request.responseText }));
    request.addEventListener("error", () =>
      reject(new Error("the file was not sent: the connection broke, or it is too long")));
    request.send(body);
  });
}

/** @returns {Promise<{ status: number, text: string }>} */
async function send() {
  if (!trace) {
    const answer = await ask("/ui/try/spec", { method: "POST", body: new FormData(form) });
    return { status: answer.status, text: await answer.text() };
  }
  const body = new FormData();
  body.append("gpu", /** @type {HTMLInputElement} */ (byId("gpu")).value);
  body.append("allocator", /** @type {HTMLInputElement} */ (byId("allocator")).value);
  body.append("trace", trace);
  return upload(body);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  mistakes.replaceChildren();
  button.disabled = true;
  try {
    const { status, text } = await send();
    if (status === 200) {
      location.assign(JSON.parse(text).location);
      return;
    }
    if (status !== 422 || !text.startsWith("<")) throw new Error(JSON.parse(text).detail);
    mistakes.innerHTML = text;
    mistakes.scrollIntoView({ block: "nearest" });
  } catch (error) {
    showFailure(mistakes, error);
  } finally {
    button.disabled = false;
    byId("sending").hidden = true;
  }
});
