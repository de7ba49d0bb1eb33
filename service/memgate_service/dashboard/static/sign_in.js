// @ts-check
/**
 * A browser that followed a link from elsewhere does not show its cookie (SameSite=Strict), though
 * it may have one. From this page of ours it does: if there is a session, nobody types a key.
 */

import "./common.js";

const form = document.querySelector("form[data-next]");
if (form instanceof HTMLFormElement) {
  const answer = await fetch("/ui/session", { credentials: "same-origin" });
  if ((await answer.json()).is_signed_in) location.replace(form.dataset.next ?? "/");
}
