/** Questions to the person, one at a time. What goes wrong is told in the dialog, which stays open. */
import { computed, html, signal, useEffect, useRef, useState } from "../vendor.js";
import { words } from "../app/api.js";

/**
 * @typedef {{name: string, label: string, value?: string, rows?: number, required?: boolean, hint?: string,
 *   options?: {value: string, label: string}[], choices?: string[]}} Field
 * `choices`: what may be meant; anything else may be given, too.
 * @typedef {{title: string, text?: any, fields?: Field[], action: string, isDanger?: boolean, isWide?: boolean,
 *   run?: (values: Record<string, string>) => Promise<unknown>}} Question
 */

/** @type {import("../vendor.js").Signal<(Question & {done: (values: Record<string, string> | null) => void}) | null>} */
const asked = signal(null);

/** Whether a question is open. */
export const isAsking = computed(() => asked.value !== null);

/** Ask; return the values of the fields, or `null` if the person does not want it. With `run`, that is done first.
 * @param {Question} question
 * @returns {Promise<Record<string, string> | null>} */
export function ask(question) {
  return new Promise((resolve) => {
    asked.value?.done(null);
    const done = (/** @type {Record<string, string> | null} */ values) => {
      asked.value = null;
      resolve(values);
    };
    asked.value = { ...question, done };
  });
}

export function Dialogs() {
  const question = asked.value;
  return question && html`<${Dialog} question=${question} key=${question} />`;
}

/** @param {{question: Question & {done: (values: Record<string, string> | null) => void}}} props */
function Dialog({ question }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    element.current?.showModal();
    return () => before?.focus?.({ preventScroll: true });
  }, []);
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const values = /** @type {Record<string, string>} */ (Object.fromEntries(new FormData(form)));
    setBusy(true);
    try {
      await question.run?.(values);
      question.done(values);
    } catch (error) {
      setProblem(words(error));
      setBusy(false);
    }
  };
  const cancel = () => !isBusy && question.done(null);
  return html`<dialog
    ref=${element}
    class=${question.isWide ? "wide" : ""}
    aria-labelledby="dialog-title"
    onCancel=${(/** @type {Event} */ event) => (event.preventDefault(), cancel())}
  >
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${question.title}</h2>
      ${question.text && html`<div>${question.text}</div>`}
      ${question.fields?.map((field, at) => html`<${FieldOf} field=${field} isFirst=${at === 0} key=${field.name} />`)}
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div class="actions">
        <button type="button" onClick=${cancel}>Cancel</button>
        <button class=${question.isDanger ? "main-action danger" : "main-action"} disabled=${isBusy}>${question.action}</button>
      </div>
    </form>
  </dialog>`;
}

/** @param {{field: Field, isFirst?: boolean}} props
 * `isFirst`: it gets the keyboard when the dialog opens. */
export function FieldOf({ field, isFirst = false }) {
  const { name, label, value = "", rows, required = false, hint, options, choices } = field;
  const common = { name, required, autocomplete: "off", autofocus: isFirst };
  const control = options
    ? html`<select ...${common}>
        ${options.map((each) => html`<option value=${each.value} selected=${each.value === value}>${each.label}</option>`)}
      </select>`
    : rows
      ? html`<textarea ...${common} rows=${rows} defaultValue=${value}></textarea>`
      : html`<input ...${common} defaultValue=${value} list=${choices && `choices-${name}`} />
          ${choices && html`<datalist id=${`choices-${name}`}>${choices.slice(0, 200).map((each) => html`<option value=${each}></option>`)}</datalist>`}`;
  return html`<label class="field"><span>${label}</span>${control}${hint && html`<small>${hint}</small>`}</label>`;
}
