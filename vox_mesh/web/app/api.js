/** Requests to the node. Every refusal is a `Problem` with what is wrong and what to do. */
import { forget, headers } from "./session.js";

const TIMEOUT_MS = 20_000;
const MAX_REMEMBERED = 60;

/** Answers by path, with their tags: an unchanged one is not sent again.
 * @type {Map<string, {tag: string, value: any}>} */
const remembered = new Map();

/** A refusal, or no answer. */
export class Problem extends Error {
  /** @param {number} status @param {{code?: string, detail?: string, hint?: string, faults?: any[]}} document */
  constructor(status, document) {
    super(document.detail ?? `The node answered with ${status}.`);
    this.status = status;
    this.code = document.code ?? "";
    this.hint = document.hint ?? "";
    this.document = document;
  }
}

/** Return the text of any error, with its hint.
 * @param {unknown} error */
export function words(error) {
  if (error instanceof Problem) return error.hint ? `${error.message}: ${error.hint}` : error.message;
  return error instanceof Error ? error.message : String(error);
}

/** @param {string} path @param {Record<string, any>} [query] */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

/** Return a segment of a path. Browsers take one of dots, encoded or not, as a step up or as nothing at all.
 * @param {string} text */
export function segment(text) {
  if (text === "." || text === "..") throw new Problem(0, { code: "bad_path", detail: `No name can be ${text}` });
  return encodeURIComponent(text);
}

/** Read. The answer is the same object while nothing has changed.
 * @param {string} path @param {Record<string, any>} [query] @param {{signal?: AbortSignal, timeoutMs?: number}} [options]
 * @returns {Promise<any>} */
export async function get(path, query, options = {}) {
  const url = address(path, query);
  const known = remembered.get(url);
  /** @type {Record<string, string>} */
  const tag = known ? { "If-None-Match": known.tag } : {};
  const response = await request(url, { headers: { ...headers(), ...tag } }, options);
  if (response.status === 304 && known) return known.value;
  const value = await answer(response);
  const newTag = response.headers.get("ETag");
  if (newTag) remember(url, newTag, value);
  return value;
}

/** Read text, such as an artifact.
 * @param {string} path */
export async function getText(path) {
  const response = await request(path, { headers: headers() });
  if (!response.ok) await answer(response);
  return response.text();
}

/** Read bytes, such as an artifact, to keep them as a file.
 * @param {string} path @param {number} timeoutMs */
export async function getBlob(path, timeoutMs) {
  const response = await request(path, { headers: headers() }, { timeoutMs });
  if (!response.ok) await answer(response);
  return response.blob();
}

/** Write.
 * @param {"POST" | "PUT" | "PATCH" | "DELETE"} method @param {string} path @param {any} [body]
 * @returns {Promise<any>} */
export async function send(method, path, body) {
  const init = { method, headers: { ...headers(), "Content-Type": "application/json" } };
  return answer(await request(path, body === undefined ? init : { ...init, body: JSON.stringify(body) }));
}

/** @param {string} url @param {RequestInit} init @param {{signal?: AbortSignal, timeoutMs?: number}} [options] */
async function request(url, init, { signal, timeoutMs = TIMEOUT_MS } = {}) {
  const deadline = AbortSignal.timeout(timeoutMs);
  try {
    return await fetch(url, { ...init, cache: "no-store", signal: signal ? AbortSignal.any([signal, deadline]) : deadline });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, { code: "no_answer", detail: "The node does not answer", hint: "it is tried again" });
  }
}

/** @param {Response} response */
async function answer(response) {
  const text = await response.text();
  const isJson = response.headers.get("Content-Type")?.includes("json");
  const value = isJson && text ? JSON.parse(text) : text || null;
  if (response.ok) return value;
  const problem = new Problem(response.status, isJson ? value : {});
  if (problem.code === "session_ended") forget("The session has ended.");
  throw problem;
}

/** @param {string} url @param {string} tag @param {any} value */
function remember(url, tag, value) {
  remembered.delete(url);
  remembered.set(url, { tag, value });
  if (remembered.size > MAX_REMEMBERED) remembered.delete(remembered.keys().next().value ?? "");
}
