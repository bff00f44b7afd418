/** What is shown when the node does not answer: it is tried again, and the others that are known are, too. */
import { html, useEffect, useState } from "../vendor.js";
import { session } from "./session.js";
import { connection } from "./stream.js";

const ASK_MS = 3_000;

/** @param {{tryNow: () => void}} props */
export function Lost({ tryNow }) {
  const isLost = connection.value === "lost";
  const [answering, setAnswering] = useState(/** @type {{node_id: string, url: string}[]} */ ([]));
  useEffect(() => {
    if (!isLost) return;
    let isWanted = true;
    const ask = async () => {
      const found = await Promise.all((session.value?.nodes ?? []).map(answers));
      if (isWanted) setAnswering(found.filter((each) => each !== null));
    };
    void ask();
    const timer = setInterval(ask, ASK_MS);
    return () => {
      isWanted = false;
      clearInterval(timer);
    };
  }, [isLost]);
  if (!isLost) return null;
  return html`<div class="banner" role="alert">
    <strong>${session.value?.node_id} does not answer.</strong>
    <span>What you see may be old. It is tried again.</span>
    <button class="small" onClick=${tryNow}>Try now</button>
    ${answering.map((each) => html`<a class="button small" href=${`${each.url}/ui/`} rel="noreferrer" key=${each.node_id}>Open at ${each.node_id}</a>`)}
  </div>`;
}

/** Return a node if it answers. Its answer can't be read from here, and need not be.
 * @param {{node_id: string, url: string}} node */
async function answers(node) {
  const { protocol, host } = new URL(node.url);
  if (protocol !== "http:" && protocol !== "https:") return null;
  try {
    await fetch(`${protocol}//${host}/livez`, { mode: "no-cors", cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ASK_MS) });
    return { node_id: node.node_id, url: `${protocol}//${host}` };
  } catch {
    return null;
  }
}
