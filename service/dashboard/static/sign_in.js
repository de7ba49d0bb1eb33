// @ts-check
/**
 * A browser that followed a link from elsewhere does not show its cookie (SameSite=Strict), though
 * it may have one. From this page of ours it does: if there is a session, nobody types a key.
 */

import "./common.js";

const form = document.querySelector("form[data-next]");
if (form instanceof HTMLFormElement && document.referrer !== location.href) {
  const answer = await fetch("/ui/session", { credentials: "same-origin" });
  if (answer.ok) location.replace(form.dataset.next ?? "/");
}
