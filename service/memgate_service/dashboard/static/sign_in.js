// @ts-check
/**
 * A browser that followed a link from another site does not send its cookie (SameSite=Strict),
 * though it may have one. From this page it does: if there is a session, no key is needed.
 */

import "./common.js";

const form = document.querySelector("form[data-next]");
if (form instanceof HTMLFormElement) {
  const answer = await fetch("/ui/session", { credentials: "same-origin" });
  if ((await answer.json()).is_signed_in) location.replace(form.dataset.next ?? "/");
}
