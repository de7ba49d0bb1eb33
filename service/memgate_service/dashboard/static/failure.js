// @ts-check
/** What is shown instead of a page: if it is only for now, the page itself as soon as it is there. */

import "./common.js";

const LOOK_MS = 4000;

async function look() {
  const answer = await fetch(location.href, { method: "HEAD", credentials: "same-origin" }).catch(() => null);
  if (answer?.ok) location.reload();
  else setTimeout(look, LOOK_MS);
}

if (document.getElementById("comes-back")) setTimeout(look, LOOK_MS);
