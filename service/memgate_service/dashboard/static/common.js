// @ts-check
/** What every page has: the theme, times in the reader's time zone, and live updates. */

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`this page has no #${id}`);
  return found;
}

/** Show times in this machine's time zone. @param {ParentNode} root */
export function localizeTimes(root) {
  const today = new Date().toDateString();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.getAttribute("datetime") ?? "");
    const time = moment.toLocaleTimeString([], { hour12: false });
    const isToday = moment.toDateString() === today;
    element.textContent = isToday ? time : `${moment.toLocaleDateString()} ${time}`;
    element.setAttribute("title", moment.toLocaleString());
  }
}

/**
 * Put a part of a page in place; the server has made and escaped it. What had the focus keeps it.
 * @param {Element} element @param {string} html
 */
export function swap(element, html) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const link = focused?.getAttribute("href");
  element.innerHTML = html;
  localizeTimes(element);
  if (link) {
    for (const other of element.querySelectorAll("a[href]")) {
      if (other instanceof HTMLElement && other.getAttribute("href") === link) other.focus();
    }
  }
}

/** Streams that this page listens to. */
let num_open = 0;

/**
 * Subscribe to changes. The browser reconnects by itself when a stream ends; if it is refused, we
 * retry a while later.
 * @param {string} url @param {Record<string, (data: any) => void>} handlers
 * @returns {() => void} what ends it
 */
export function listen(url, handlers) {
  const indicator = document.getElementById("live");
  /** @param {string} state @param {string} text */
  const show = (state, text) => {
    if (!indicator || indicator.textContent === text) return;
    indicator.dataset.state = state;
    indicator.textContent = text;
  };
  /** @type {EventSource} */
  let source;
  let isOver = false;
  /** @type {number | undefined} */
  let timer;
  const open = () => {
    source = new EventSource(url);
    source.addEventListener("open", () => show("live", "live"));
    source.addEventListener("error", () => {
      show("off", "not live");
      if (source.readyState === EventSource.CLOSED && !isOver) timer = setTimeout(open, 30_000);
    });
    source.addEventListener("away", () => show("away", "queue is away"));
    source.addEventListener("here", () => show("live", "live"));
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
  };
  open();
  const close = () => {
    if (isOver) return;
    isOver = true;
    clearTimeout(timer);
    source.close();
    num_open -= 1;
    if (indicator) indicator.hidden = num_open === 0; // nothing to wait for any more
  };
  num_open += 1;
  if (indicator) indicator.hidden = false;
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });
  return close;
}

/**
 * Ask one of our own routes; a refusal is an error with the reason.
 * @param {string} url @param {RequestInit} [options] @returns {Promise<Response>}
 */
export async function ask(url, options) {
  const answer = await fetch(url, { credentials: "same-origin", ...options });
  if (answer.ok || answer.status === 422) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Error(problem.detail ?? `the server answered ${answer.status}`);
}

/** Show an error to a person. @param {Element} place @param {unknown} error */
export function showFailure(place, error) {
  const box = document.createElement("div");
  box.className = "mistakes";
  const title = document.createElement("h2");
  title.textContent = "That did not work";
  const text = document.createElement("p");
  text.textContent = error instanceof Error ? error.message : String(error);
  box.append(title, text);
  place.replaceChildren(box);
}

function setUpTheme() {
  const button = byId("theme");
  const order = ["system", "light", "dark"];
  const show = () => {
    const chosen = localStorage.getItem("theme") ?? "system";
    button.textContent = `Theme: ${chosen}`;
    button.setAttribute("aria-label", `Theme: ${chosen}. Press for the next one.`);
  };
  button.addEventListener("click", () => {
    const chosen = localStorage.getItem("theme") ?? "system";
    const next = order[(order.indexOf(chosen) + 1) % order.length];
    if (next === "system") localStorage.removeItem("theme");
    else localStorage.setItem("theme", next);
    document.dispatchEvent(new Event("themechosen"));
    show();
  });
  show();
}

setUpTheme();
localizeTimes(document);
