/**
 * Chat messages in OpenAI's shape, as the server takes them. Pure.
 *
 * @typedef {{ id: string, type: "function", function: { name: string, arguments: string } }} FunctionCall
 * @typedef {{ id: string, type: "custom", custom: { name: string, input: string } }} CustomCall
 * @typedef {FunctionCall | CustomCall} Call
 * @typedef {{ role: string, content: string | null, tool_calls?: Call[], tool_call_id?: string }} Turn
 */

const ROLES = ["user", "assistant", "system", "developer", "tool"];

/** @param {Call} call */
export const nameOf = (call) => (call.type === "custom" ? call.custom.name : call.function.name);

/** @param {Call} call */
export const inputOf = (call) => (call.type === "custom" ? call.custom.input : call.function.arguments);

/** @param {Call} call */
export const callText = (call) => `${nameOf(call)}(${inputOf(call)})`;

/**
 * A message as one text; a call is a line of its own.
 * @param {Turn} turn
 */
export function textOf({ content, tool_calls: calls = [] }) {
  return [content, ...calls.map((call) => `Action: ${callText(call)}`)].filter(Boolean).join("\n");
}

/**
 * A message with the server's fields alone, always in the same order, so that equal ones are equal
 * as JSON.
 * @param {any} value a message of the server or of a file
 * @returns {Turn}
 * @throws {TypeError} if it is no message
 */
export function plainTurn(value) {
  const { role, content = null, tool_calls: calls, tool_call_id: callId } = value ?? {};
  if (!ROLES.includes(role)) throw new TypeError(`the role of a turn is ${JSON.stringify(role)}`);
  if (content !== null && typeof content !== "string") throw new TypeError("a turn's content is no text");
  /** @type {Turn} */
  const turn = { role, content };
  if (calls?.length) turn.tool_calls = Array.from(calls, plainCall);
  if (callId) turn.tool_call_id = String(callId);
  return turn;
}

/**
 * @param {any} value
 * @returns {Call}
 */
function plainCall(value) {
  const id = String(value?.id ?? "");
  if (value?.type === "custom" || value?.custom) {
    return { id, type: "custom", custom: { name: text(value.custom?.name), input: text(value.custom?.input) } };
  }
  const { name, arguments: given } = value?.function ?? {};
  return { id, type: "function", function: { name: text(name), arguments: text(given) } };
}

/** @param {unknown} value */
function text(value) {
  if (typeof value !== "string") throw new TypeError("a tool call has no name or no arguments");
  return value;
}

/** @param {string} input */
export function isJson(input) {
  try {
    JSON.parse(input);
    return true;
  } catch {
    return false;
  }
}
