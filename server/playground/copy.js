/** "Copy as": the request of a form as code, shown and put on the clipboard. */

import { codeOf } from "./code.js";
import { byId } from "./dom.js";
import { baseAddress, key } from "./server.js";

/** @typedef {import("./code.js").Language} Language */

/** Fields whose null asks for something else than their absence. */
const MEANT = ["temperature", "max_tokens"];

const LANGUAGES = /** @type {Language[]} */ (["curl", "python", "typescript"]);

export class Copy {
  /**
   * @param {string} part whose buttons they are: act or score
   * @param {string} path
   * @param {() => Record<string, any> | null} request null if the form cannot be read
   */
  constructor(part, path, request) {
    this.part = part;
    this.path = path;
    this.request = request;
    for (const language of LANGUAGES) {
      byId(`${part}-${language}`).addEventListener("click", () => this.copy(language));
    }
  }

  /** @param {Language} language */
  async copy(language) {
    const asked = this.request();
    if (!asked) return;
    const told = Object.entries(asked).filter(([name, value]) => value !== null || MEANT.includes(name));
    const body = Object.fromEntries(told);
    const box = byId(`${this.part}-code-box`);
    const field = byId(`${this.part}-code`);
    const status = byId(`${this.part}-status`);
    const needsKey = Boolean(key.get());
    field.value = codeOf(language, { base: baseAddress(), path: this.path, body, needsKey });
    box.hidden = false;
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
      status.textContent = "Copied.";
    } catch {
      status.textContent = "This browser does not let a page copy; the text is selected.";
    }
  }
}
