/**
 * What this page asks of the server that it comes from, and how it says who asks.
 *
 * Paths are relative, so that the page also works behind a proxy's prefix. The key is kept for
 * this tab alone, or for this page alone where the browser stores nothing; it is part of no address.
 */

const KEY = "qguide.key";

/** An answer that is an error, or none at all; the message is the server's own. */
export class ServerError extends Error {
  /**
   * @param {string} message
   * @param {{ status?: number, code?: string, requestId?: string, retryAfterS?: string | null }} [about]
   */
  constructor(message, { status = 0, code = "", requestId = "", retryAfterS = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.requestId = requestId;
    this.retryAfterS = retryAfterS;
  }
}

let keyInUse = storedKey();

export const key = {
  get: () => keyInUse,
  /** @param {string} value */
  set: (value) => {
    keyInUse = value;
    storeKey(value);
  },
};

/** @returns {string} */
function storedKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // refused: by the browser's settings, or in a sandboxed frame
  }
}

/** @param {string} value */
function storeKey(value) {
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // refused, as above
  }
}

/** What is offered here; needs no key. */
export const getAbilities = () => ask("GET", "playground/abilities");

/** Policies and Q models. */
export const getModels = () => ask("GET", "v1/models");

/**
 * @param {object} body
 * @param {AbortSignal} [signal]
 */
export const postAct = (body, signal) => ask("POST", "v1/act", body, signal);

/**
 * @param {object} body
 * @param {AbortSignal} [signal]
 */
export const postScore = (body, signal) => ask("POST", "v1/score", body, signal);

/**
 * Recorded episodes, newest first; needs an admin key.
 * @param {URLSearchParams} query
 */
export const getRecorded = (query) => ask("GET", `v1/episodes?${query}`);

/**
 * The rows of a recorded episode; needs an admin key.
 * @param {string} id
 */
export const getRecordedRows = (id) => ask("GET", `v1/episodes/${encodeURIComponent(id)}`);

/**
 * Where learning stands.
 * @param {string} group "" is the key's own
 */
export const getLearning = (group) => ask("GET", `v1/learning${groupQuery(group)}`);

/** @param {string} group */
export const getCurve = (group) => ask("GET", `v1/learning/curve${groupQuery(group)}`);

/** All groups that learn here; needs an admin key. */
export const getGroups = async () => (await ask("GET", "v1/learning/groups")).groups;

/**
 * An operator's order; needs an admin key.
 * @param {string} order
 * @param {string} group
 */
export const postOrder = (order, group) => ask("POST", "v1/learning", { order, ...(group && { group }) });

/** @param {string} group */
const groupQuery = (group) => (group ? `?${new URLSearchParams({ group })}` : "");

/**
 * A game with all replies so far.
 * @param {{ game: number, replies: string[] }} body
 * @param {AbortSignal} [signal]
 */
export const postGame = (body, signal) => ask("POST", "v1/games/play", body, signal);

/** @param {{ items: object[] }} body */
export const postScoreBatch = (body) => ask("POST", "v1/score/batch", body);

/** The server's address, which paths of its API are added to. */
export const baseAddress = () => addressOf("");

/** @param {string} path */
function addressOf(path) {
  return new URL(path || ".", document.baseURI).href;
}

/**
 * @param {"GET" | "POST"} method
 * @param {string} path
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
async function ask(method, path, body, signal) {
  const headers = new Headers({ accept: "application/json" });
  if (body) headers.set("content-type", "application/json");
  let response;
  try {
    if (key.get()) headers.set("authorization", `Bearer ${key.get()}`);
    const sent = body && JSON.stringify(body);
    response = await fetch(addressOf(path), { method, headers, body: sent, signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(`the server cannot be asked (${error.message}); is it running?`);
  }
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  const requestId = response.headers.get("x-request-id") ?? "";
  if (response.ok) throw new ServerError("the server's answer broke off; ask again", { requestId });
  throw refusal(response, answer);
}

/**
 * @param {Response} response
 * @param {any} answer
 */
function refusal(response, answer) {
  const { code = "", message = response.statusText, request_id: requestId = "" } = answer?.error ?? {};
  const retryAfterS = response.headers.get("retry-after");
  return new ServerError(message, { status: response.status, code, requestId, retryAfterS });
}
