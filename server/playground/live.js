/** The list of the episodes that this server has recorded; it asks again while it can be seen. */

import { showError } from "./alert.js";
import { written } from "./candidates.js";
import { byId, counted, el, show } from "./dom.js";
import { lineOf } from "./sparkline.js";
import { getRecorded, getRecordedRows } from "./server.js";

const EVERY_MS = 3000;
const AFTER_TYPING_MS = 300;

export class Live {
  /** @param {(file: { name: string, text: string }) => void} open shows an episode's rows */
  constructor(open) {
    this.open = open;
    this.form = byId("live-form");
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** The question whose answer is wanted; an earlier one's comes too late. */
    this.asked = 0;
    this.shown = "";
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => this.askIn(AFTER_TYPING_MS));
    document.addEventListener("visibilitychange", () => this.askIn(0));
    addEventListener("keychange", () => this.askIn(0));
  }

  /** Begins where the server has such a list. */
  start() {
    byId("live").hidden = false;
    byId("live-none").hidden = true;
    this.askIn(0);
  }

  /** @param {number} ms */
  askIn(ms) {
    if (byId("live").hidden) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), ms);
  }

  async ask() {
    const isSeen = byId("live").checkVisibility() && !document.hidden;
    const mine = ++this.asked;
    try {
      if (isSeen) {
        const list = await getRecorded(this.query());
        if (this.asked === mine) this.showList(list);
      }
    } catch (error) {
      if (this.asked === mine) showError(byId("live-error"), error);
    }
    if (this.asked === mine) this.askIn(EVERY_MS);
  }

  query() {
    const { search, rewarded } = this.form.elements;
    const query = new URLSearchParams({ search: search.value, limit: "50" });
    if (rewarded.value) query.set("rewarded", rewarded.value);
    return query;
  }

  /** @param {{ episodes: any[], matching: number }} list */
  showList(list) {
    show(byId("live-error"));
    const now = JSON.stringify(list);
    if (now === this.shown) return; // the focus stays where it is
    this.shown = now;
    const { episodes, matching } = list;
    const more = matching > episodes.length ? `; the newest ${episodes.length} are shown` : "";
    byId("live-count").textContent = `${matching.toLocaleString("en")} recorded${more}.`;
    const focused = document.activeElement?.getAttribute("data-episode");
    const items = episodes.map((episode) => el("li", {}, this.buttonOf(episode)));
    byId("live-list").replaceChildren(...items);
    if (focused) byId("live-list").querySelector(`[data-episode="${CSS.escape(focused)}"]`)?.focus();
  }

  buttonOf(episode) {
    const { reward, steps, task, task_id: taskId, q_model: qModel, judge } = episode;
    const button = el(
      "button",
      { type: "button", className: "recorded-episode", "data-episode": episode.episode },
      el("span", { className: reward > 0 ? "reward good" : "reward bad", textContent: `reward ${written(reward, 2)}` }),
      el("span", { className: "title", textContent: (task || taskId).trim().split("\n").at(-1) }),
      el("span", { className: "facts", textContent: `${counted(steps.length, "step")} · ${qModel}${judge ? " (a judge)" : ""}` }),
      lineOf(steps.map(({ taken }) => taken)),
    );
    button.addEventListener("click", () => this.openEpisode(episode.episode));
    return button;
  }

  /** @param {string} id */
  async openEpisode(id) {
    show(byId("live-error"));
    try {
      const { offers, tree } = await getRecordedRows(id);
      const rows = tree ? [...offers, tree] : offers;
      this.open({ name: `episode ${id}`, text: rows.map((row) => JSON.stringify(row)).join("\n") });
    } catch (error) {
      showError(byId("live-error"), error);
    }
  }
}
