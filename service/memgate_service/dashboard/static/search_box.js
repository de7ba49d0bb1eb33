// @ts-check
/** A text field that offers what matches while somebody types: a combobox, by keyboard or mouse. */

/** @typedef {{ value: string, about: string }} Choice */

/** How many matches are offered; more would not be read. */
const MAX_SHOWN = 50;

/** Compare without case and punctuation: `rtx3060` is `RTX 3060`. @param {string} text */
const loosen = (text) => text.toLowerCase().replace(/[^a-z0-9.]+/g, "");

/**
 * Return the choices that have every word in them; those that begin with the text come first.
 * @param {Choice[]} choices @param {string} text @returns {Choice[]}
 */
export function findMatches(choices, text) {
  const words = text.split(/\s+/).map(loosen).filter(Boolean);
  const whole = loosen(text);
  /** @type {Choice[][]} */
  const ranks = [[], [], []];
  for (const choice of choices) {
    const name = loosen(choice.value.slice(choice.value.search(/[^/:]*$/)));
    const all = loosen(`${choice.value} ${choice.about}`);
    if (!words.every((word) => all.includes(word))) continue;
    ranks[name === whole ? 0 : name.startsWith(whole) ? 1 : 2].push(choice);
  }
  return ranks.flat();
}

/**
 * Make a search box of a field and the list below it.
 * @param {HTMLInputElement} input @param {HTMLElement} list
 * @param {() => Promise<Choice[]>} load what there is, asked for when it is first needed
 * @param {() => void} chosen called when something was chosen
 */
export function makeSearchBox(input, list, load, chosen) {
  /** @type {Choice[]} */
  let shown = [];
  let at = -1;
  let asked = 0;

  input.removeAttribute("list"); // what a browser offers without us
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id,
  })) input.setAttribute(name, value);

  const close = () => {
    asked += 1;
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };

  /** @param {number} next */
  const mark = (next) => {
    at = next;
    for (const [number, item] of [...list.children].entries()) {
      item.setAttribute("aria-selected", String(number === at));
      if (number === at) item.scrollIntoView({ block: "nearest" });
    }
    if (at >= 0) input.setAttribute("aria-activedescendant", `${list.id}-${at}`);
    else input.removeAttribute("aria-activedescendant");
  };

  /** @param {Choice} choice */
  const take = (choice) => {
    input.value = choice.value;
    close();
    chosen();
  };

  /** @param {string} text */
  const open = async (text) => {
    const ticket = (asked += 1);
    const matches = findMatches(await load(), text);
    if (ticket !== asked || document.activeElement !== input) return;
    shown = matches.slice(0, MAX_SHOWN);
    list.replaceChildren(...shown.map((choice, number) => {
      const item = document.createElement("li");
      item.id = `${list.id}-${number}`;
      item.setAttribute("role", "option");
      const about = document.createElement("span");
      about.textContent = choice.about;
      item.append(choice.value, about);
      item.addEventListener("pointerdown", (event) => {
        event.preventDefault(); // the field keeps the focus
        take(choice);
      });
      return item;
    }));
    list.hidden = shown.length === 0;
    input.setAttribute("aria-expanded", String(shown.length > 0));
    mark(-1);
  };

  input.addEventListener("input", () => void open(input.value));
  input.addEventListener("blur", close);
  input.addEventListener("keydown", async (event) => {
    if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      close();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) await open("");
      else mark((at + (event.key === "ArrowDown" ? 1 : -1 + (at < 0 ? 1 : 0)) + shown.length) % shown.length);
    } else if (event.key === "Enter" && at >= 0) {
      event.preventDefault();
      take(shown[at]);
    }
  });
}
