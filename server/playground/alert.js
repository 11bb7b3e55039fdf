/** Errors, shown where they came up, in the server's own words. */

import { el, show } from "./dom.js";
import { ServerError } from "./server.js";

/**
 * @param {HTMLElement} place
 * @param {unknown} error
 */
export function showError(place, error) {
  if (!(error instanceof ServerError)) {
    show(place, `This page failed: ${error}`);
    console.error(error);
    return;
  }
  const { status, code, message, retryAfterS, requestId } = error;
  const parts = [el("span", { textContent: message })];
  if (status) parts.unshift(el("strong", { textContent: [status, code].filter(Boolean).join(" ") }));
  if (retryAfterS) parts.push(el("span", { textContent: `Try again in ${retryAfterS} s.` }));
  if (requestId) parts.push(el("small", { textContent: `request ${requestId}` }));
  show(place, ...parts.flatMap((part, index) => (index ? [" ", part] : [part])));
}
