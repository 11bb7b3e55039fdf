/** The parts of the page as tabs: one stop of the Tab key, and arrow keys within it. */

import { byId } from "./dom.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

export class Parts {
  /** @param {(part: string) => void} opened is told which part is open */
  constructor(opened) {
    this.opened = opened;
    this.tabs = [...document.querySelectorAll('nav [role="tab"]')];
    this.names = this.tabs.map((tab) => tab.getAttribute("href").slice(1));
    for (const tab of this.tabs) tab.addEventListener("keydown", (event) => this.move(event));
  }

  /** The part that the address names, or the first. */
  get named() {
    const name = location.hash.slice(1);
    return this.names.includes(name) ? name : this.names[0];
  }

  /** Opens the part that the address names. */
  open() {
    const { named } = this;
    this.names.forEach((name, index) => {
      byId(name).hidden = name !== named;
      this.tabs[index].setAttribute("aria-selected", String(name === named));
      this.tabs[index].tabIndex = name === named ? 0 : -1;
    });
    this.opened(named);
  }

  /** @param {KeyboardEvent} event */
  move(event) {
    const at = this.names.indexOf(this.named);
    const ends = { Home: 0, End: this.tabs.length - 1 };
    const to = ends[event.key] ?? (event.key in STEPS ? at + STEPS[event.key] : undefined);
    if (to === undefined) return;
    event.preventDefault();
    const tab = this.tabs.at(to % this.tabs.length);
    location.hash = tab.getAttribute("href");
    tab.focus();
  }
}
