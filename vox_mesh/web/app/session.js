/** The session of this page: who is signed in, and the half of the secret that the page keeps. */
import { signal } from "../vendor.js";

/**
 * @typedef {{name: string, agent: string, may_write: boolean, expires_ms: number, node_id: string, scope_id: string,
 *   repository_id: string, version: string, strict: boolean, nodes: {node_id: string, url: string}[]}} Session
 */

const KEY = "vox-mesh-console";

/** Who is signed in; `null`: nobody; `undefined`: not known yet.
 * @type {import("../vendor.js").Signal<Session | null | undefined>} */
export const session = signal(undefined);

/** Why nobody is signed in. */
export const reason = signal("");

/** The operations that this person may call.
 * @type {import("../vendor.js").Signal<Set<string>>} */
export const operations = signal(new Set());

/** Whether this person may call an operation of the API, by its name.
 * @param {string} operation */
export function may(operation) {
  return operations.value.has(operation);
}

/** The header of every request. */
export function headers() {
  return { "Vox-Console": localStorage.getItem(KEY) ?? "" };
}

/** Forget the session: the node does not know it any more, or the person has left.
 * @param {string} why */
export function forget(why) {
  localStorage.removeItem(KEY);
  reason.value = why;
  session.value = null;
}

/** Sign in with a one-time code, or with a token and a name.
 * @param {{code: string} | {token: string, name: string}} proof */
export async function signIn(proof) {
  const response = await fetch("/ui/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(proof),
    signal: AbortSignal.timeout(15_000),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error([answer.detail, answer.hint].filter(Boolean).join(": "));
  localStorage.setItem(KEY, answer.secret);
  await enter(answer.session);
}

/** Take up the session of an earlier page, or the code in the address. */
export async function restore() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  let why = "";
  if (code) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      return await signIn({ code });
    } catch (error) {
      why = error instanceof Error ? error.message : String(error);
      if (session.value) return; // any page may link here: a wrong code ends no session
    }
  }
  if (!localStorage.getItem(KEY)) return forget(why);
  try {
    const response = await fetch("/ui/session", { headers: headers(), signal: AbortSignal.timeout(15_000) });
    if (response.ok) return await enter(await response.json());
  } catch {
    return forget("The node does not answer.");
  }
  forget(why || "The session has ended.");
}

/** @param {Session} found */
async function enter(found) {
  const response = await fetch("/v1/me", { headers: headers(), signal: AbortSignal.timeout(15_000) });
  operations.value = new Set(response.ok ? (await response.json()).operations : []);
  reason.value = "";
  session.value = found;
}

/** End the session at the node, too. */
export async function signOut() {
  try {
    await fetch("/ui/session", { method: "DELETE", headers: headers(), signal: AbortSignal.timeout(5_000) });
  } finally {
    forget("You have signed out.");
  }
}
