/** Filters of a list. They live in the address, so that a link shows the same. */
import { html, useEffect, useRef } from "../vendor.js";
import { refine, route } from "../app/router.js";

const PAUSE_MS = 250;

/** A text to filter by, which counts when the typing pauses. News of the mesh leaves what is being typed alone.
 * @param {{name: string, label: string, placeholder?: string, choices?: string[]}} props
 * `choices`: what may be meant; anything else may be given, too. */
export function TextFilter({ name, label, placeholder, choices }) {
  const element = useRef(/** @type {HTMLInputElement | null} */ (null));
  const timer = useRef(0);
  const current = route.value.query.get(name) ?? "";
  useEffect(() => {
    if (element.current && element.current !== document.activeElement) element.current.value = current;
  }, [current]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const apply = () => {
    clearTimeout(timer.current);
    const text = element.current?.value.trim() ?? "";
    if (text !== (route.value.query.get(name) ?? "")) refine({ [name]: text });
  };
  const type = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(apply, PAUSE_MS);
  };
  return html`<label class="field">
    <span>${label}</span>
    <input ref=${element} type="search" defaultValue=${current} list=${choices && `filter-${name}`} maxlength="200" placeholder=${placeholder} autocomplete="off" spellcheck=${false} onInput=${type} onChange=${apply} />
    ${choices && html`<datalist id=${`filter-${name}`}>${choices.slice(0, 200).map((each) => html`<option value=${each} key=${each}></option>`)}</datalist>`}
  </label>`;
}

/** Values of which one is chosen, or all.
 * @param {{name: string, label: string, options: {value: string, label: string}[]}} props */
export function ChoiceFilter({ name, label, options }) {
  const current = route.value.query.get(name) ?? "";
  const choose = (/** @type {Event} */ event) => refine({ [name]: /** @type {HTMLSelectElement} */ (event.currentTarget).value });
  return html`<label class="field">
    <span>${label}</span>
    <select onChange=${choose}>
      ${options.map((each) => html`<option value=${each.value} selected=${each.value === current} key=${each.value}>${each.label}</option>`)}
    </select>
  </label>`;
}

/** Takes all of these filters away, where one of them is set.
 * @param {{names: string[]}} props */
export function NoFilters({ names }) {
  if (!names.some((name) => route.value.query.get(name))) return null;
  return html`<button class="plain small" onClick=${() => refine(Object.fromEntries(names.map((name) => [name, ""])))}>Show all</button>`;
}
