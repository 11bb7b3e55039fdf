/** Going through recorded episodes; the files are read here and sent nowhere. */

import { pointOf } from "./act.js";
import { showError } from "./alert.js";
import { barsOf, gapOf } from "./bars.js";
import { chartIn } from "./chart.js";
import { Choices } from "./choices.js";
import { byId, counted, el, offer, show } from "./dom.js";
import { Forest } from "./forest.js";
import { readRecords } from "./records.js";

const BAD_LINES_SHOWN = 50;
const MOST_BYTES = 256 * 1024 ** 2;

export class Recorded {
  constructor() {
    /** @type {import("./records.js").Episode[]} */
    this.episodes = [];
    this.draw = chartIn(byId("episode-chart"));
    this.forest = new Forest();
    this.choices = new Choices();
    this.slider = byId("step");
    /** @type {File[]} what was opened last; a slower read of others is not wanted any more */
    this.opened = [];
    byId("files").addEventListener("change", ({ target }) => {
      this.open([...target.files]);
      target.value = ""; // else the same file, grown meanwhile, could not be opened again
    });
    byId("episode").addEventListener("change", () => this.showEpisode());
    this.slider.addEventListener("input", () => this.showStep());
    byId("step-back").addEventListener("click", () => this.move(-1));
    byId("step-on").addEventListener("click", () => this.move(1));
  }

  /** @param {File[]} files */
  async open(files) {
    this.opened = files;
    byId("opened").textContent = files.map(({ name }) => name).join(", ");
    show(byId("records-error"));
    const large = files.find(({ size }) => size > MOST_BYTES);
    if (large) {
      const size = `${Math.ceil(large.size / 1024 ** 2)} MB`;
      show(byId("records-error"), `${large.name} has ${size}; this page reads 256 MB: open a part of its lines.`);
      return;
    }
    try {
      const reading = files.map(async (file) => ({ name: file.name, text: await file.text() }));
      const read = await Promise.all(reading);
      if (this.opened === files) this.showRecords(readRecords(read));
    } catch (error) {
      if (this.opened === files) showError(byId("records-error"), error);
    }
  }

  /**
   * An episode of the server's own list.
   * @param {{ name: string, text: string }} file
   */
  openRows(file) {
    this.opened = [];
    byId("opened").textContent = file.name;
    show(byId("records-error"));
    this.showRecords(readRecords([file]));
    byId("episode").focus();
    byId("recorded").scrollIntoView();
  }

  /** @param {import("./records.js").Records} records */
  showRecords({ episodes, trees, choices, bad }) {
    this.episodes = episodes;
    const read = [
      ...(episodes.length || !choices.length ? [counted(episodes.length, "episode")] : []),
      ...(trees.length ? [counted(trees.length, "tree")] : []),
      ...(choices.length ? [`${counted(choices.length, "choice")} of real LLMs`] : []),
    ];
    byId("records-status").textContent = `${read.join(", ")}.`;
    this.forest.show(trees);
    this.choices.show(choices);
    const lines = bad.slice(0, BAD_LINES_SHOWN).map(({ file, line, why }) => `${file}, line ${line}: ${why}`);
    if (bad.length > lines.length) lines.push(`and ${bad.length - lines.length} more`);
    byId("bad").hidden = bad.length === 0;
    byId("bad-count").textContent = `${counted(bad.length, "line")} left out`;
    byId("bad-lines").replaceChildren(...lines.map((textContent) => el("li", { textContent })));
    byId("recorded").hidden = episodes.length === 0;
    byId("episode").replaceChildren();
    offer(byId("episode"), episodes.map((episode, index) => [String(index), titleOf(episode, index)]));
    if (episodes.length) this.showEpisode();
  }

  get episode() {
    return this.episodes[Number(byId("episode").value)];
  }

  showEpisode() {
    const { task, reward, steps } = this.episode;
    byId("episode-facts").textContent = `reward ${reward} · ${counted(steps.length, "step")} with candidates · ${task}`;
    this.slider.max = String(steps.length);
    this.slider.value = "1";
    this.slider.disabled = steps.length === 0;
    this.showStep();
  }

  /** @param {number} by */
  move(by) {
    this.slider.value = String(this.slider.valueAsNumber + by);
    this.showStep();
  }

  showStep() {
    const { steps } = this.episode;
    const index = this.slider.valueAsNumber - 1;
    const step = steps[index];
    byId("step-back").disabled = index <= 0;
    byId("step-on").disabled = index >= steps.length - 1;
    this.draw(steps.map(pointOf), index);
    byId("step-bars").replaceChildren();
    byId("step-number").textContent = step ? String(step.number) : "none";
    byId("step-facts").textContent = step ? [gapOf(step.candidates), step.by].filter(Boolean).join(" · ") : "";
    showText(byId("step-seen"), step?.seen);
    showText(byId("step-after"), step?.after);
    if (!step) return;
    const { candidates, chosen, taken } = step;
    byId("step-bars").append(barsOf(candidates, { chosen, taken }));
    if (candidates.every(({ text }) => text !== taken)) {
      byId("step-bars").append(el("p", { className: "note", textContent: `Taken instead: ${taken}` }));
    }
  }
}

/**
 * @param {HTMLElement} place
 * @param {string | null | undefined} text
 */
function showText(place, text) {
  place.hidden = !text;
  place.textContent = text ?? "";
}

/**
 * @param {import("./records.js").Episode} episode
 * @param {number} index
 */
function titleOf({ task, reward, steps }, index) {
  return `${index + 1} · reward ${reward} · ${counted(steps.length, "step")} · ${task.slice(-60)}`;
}
