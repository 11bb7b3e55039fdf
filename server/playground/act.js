/** Stepping through an episode with guidance. */

import { showError } from "./alert.js";
import { candidatesOf, isUnanimous, notesOf } from "./answer.js";
import { barsOf, gapOf } from "./bars.js";
import { chartIn } from "./chart.js";
import { Compare, comparisonOf } from "./compare.js";
import { Copy } from "./copy.js";
import { byId, counted, show } from "./dom.js";
import * as episodes from "./episode.js";
import { keep } from "./link.js";
import { plainTurn, textOf } from "./messages.js";
import { Observations } from "./observations.js";
import { postAct } from "./server.js";
import { Tree } from "./tree.js";
import { stagesOfAct, usageOf } from "./usage.js";

/**
 * @typedef {import("./turns.js").Turns} Turns
 * @typedef {import("./messages.js").Turn} Turn
 * @typedef {import("./episode.js").Episode} Episode
 * @typedef {import("./own_game.js").OwnGame} OwnGame
 */

const PICK = "pick";

export class Act {
  /**
   * @param {Turns} turns the history, as it stands in the page
   * @param {Episode} episode to go on with
   * @param {OwnGame} game that may answer
   */
  constructor(turns, episode, game) {
    this.turns = turns;
    this.episode = episode;
    this.game = game;
    this.form = byId("act-form");
    this.draw = chartIn(byId("course-chart"));
    this.compare = new Compare(this.form);
    this.observations = new Observations(byId("observations"));
    this.tree = new Tree(this);
    /** @type {AbortController | null} */
    this.asking = null;
    this.listen();
    this.showState();
  }

  listen() {
    new Copy("act", "v1/act", () => (this.isUnreadable() ? null : this.request()));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.act();
    });
    byId("take-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.take() && event.submitter?.value === "act") this.act();
    });
    byId("take-form").addEventListener("change", ({ target }) => {
      if (target.name === PICK) this.showPicked();
    });
    byId("take-form").addEventListener("keydown", (event) => {
      const meant = event.key === "Enter" && (event.ctrlKey || event.metaKey);
      if (meant) byId("take-form").requestSubmit(byId("take-act"));
    });
    byId("act-stop").addEventListener("click", () => this.asking?.abort());
    byId("act-over").addEventListener("click", () => {
      this.begin(this.episode.states[episodes.pathTo(this.episode)[0]].turns);
      byId("act-status").textContent = "A new episode.";
    });
    byId("new-game").addEventListener("click", () => this.beginGame());
    for (const part of ["turns", "act-form"]) {
      byId(part).addEventListener("input", () => this.save());
    }
  }

  /**
   * Another beginning; what was there stays among the branches.
   * @param {readonly Turn[]} turns
   */
  begin(turns) {
    const { states } = this.episode;
    const isUntouched = states.length === 1 && !states[0].answer;
    this.change(
      isUntouched ? episodes.newEpisode(turns, newId()) : episodes.begunAgain(this.episode, turns, newId()),
    );
  }

  async beginGame() {
    try {
      this.begin(await this.game.next());
    } catch (error) {
      showError(byId("act-error"), error);
    }
  }

  /**
   * Shows another state, or an episode that has changed.
   * @param {Episode} episode
   */
  change(episode) {
    this.forget();
    this.episode = episode;
    this.observations.clear();
    byId("act-status").textContent = "";
    show(byId("act-error"));
    this.showState();
  }

  /** For a reload of the tab: the episode, and what was typed but not asked yet. */
  save() {
    const { elements } = this.form;
    const fields = [...elements].filter(({ name }) => name);
    const form = fields.map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]);
    byId("act-unkept").hidden = keep({ episode: this.episode, turns: this.turns.all, form, game: this.game.game });
  }

  /** What is asked for: every field as it stands, for the server to judge. */
  request() {
    const { elements } = this.form;
    return {
      messages: this.turns.all,
      num_candidates: numberIn(elements.num_candidates),
      temperature: numberIn(elements.temperature),
      max_tokens: numberIn(elements.max_tokens),
      seed: numberIn(elements.seed),
      policy: elements.policy.value || null,
      q_model: elements.q_model.value || null,
      adaptive: elements.adaptive.checked,
      previous_q: episodes.previousQ(this.episode),
      perturb: elements.perturb.checked,
      episode_id: episodes.current(this.episode).episode,
    };
  }

  /** Whether a field holds what is no number, which would be read as empty; says so. */
  isUnreadable() {
    const field = [...this.form.elements].find(({ validity }) => validity.badInput);
    show(byId("act-error"));
    if (!field) return false;
    show(byId("act-error"), `${field.labels[0].textContent.trim()} is no number; correct or empty it.`);
    field.closest("details")?.setAttribute("open", "");
    field.focus();
    return true;
  }

  async act() {
    if (this.isUnreadable()) return;
    this.forget();
    this.episode = episodes.asked(this.episode, this.turns.all, newId);
    byId("answer").hidden = !episodes.current(this.episode).answer;
    this.settleTree();
    const request = this.request();
    const asking = new AbortController();
    this.asking = asking;
    this.settle();
    byId("act-status").textContent = "Drawing and scoring …";
    try {
      const answer = await postAct(request, asking.signal);
      if (this.asking !== asking) return;
      this.episode = episodes.answered(this.episode, answer);
      this.showAnswer();
      const replies = answer.candidates.map(({ message }) => plainTurn(message));
      const second = await this.compare.scoreAlike(request.messages, replies, asking.signal);
      if (second && this.asking === asking) this.showSecond(second);
    } catch (error) {
      if (this.asking !== asking) return; // something else was begun meanwhile
      byId("act-status").textContent = asking.signal.aborted ? "Stopped." : "";
      if (!asking.signal.aborted) showError(byId("act-error"), error);
    } finally {
      if (this.asking === asking) this.asking = null;
      this.settle();
    }
  }

  /** Hangs up on what was asked, as its answer is not wanted any more. */
  forget() {
    this.asking?.abort();
    this.asking = null;
    this.settle();
  }

  /** Buttons as they make sense now. */
  settle() {
    byId("act-button").disabled = this.asking !== null;
    byId("act-stop").hidden = this.asking === null;
  }

  /** The current state as it was left: its turns, and its answer if it has one. */
  showState() {
    const { answer } = episodes.current(this.episode);
    this.turns.all = episodes.historyAt(this.episode);
    byId("answer").hidden = !answer;
    if (answer) this.fillAnswer(answer);
    this.settleTree();
  }

  showAnswer() {
    byId("act-status").textContent = "";
    this.fillAnswer(episodes.current(this.episode).answer);
    byId("answer").hidden = false;
    this.settleTree();
    byId("answer-title").focus();
  }

  /** @param {import("./episode.js").Second} second */
  showSecond(second) {
    const { picked } = this;
    this.episode = episodes.compared(this.episode, second);
    this.fillAnswer(episodes.current(this.episode).answer, picked);
    this.save();
  }

  /** @param {string} [picked] the candidate to take, if it is not the chosen one */
  fillAnswer(answer, picked) {
    const { second } = episodes.current(this.episode);
    const candidates = candidatesOf(answer);
    const chosen = candidates[answer.chosen].text;
    const number = episodes.pathTo(this.episode).length;
    const tried = new Set(this.children.map((at) => this.episode.states[at].taken.text));
    const model = `${answer.q_model}@${answer.q_model_version}`;
    byId("answer-title").textContent = `Step ${number}: ${counted(candidates.length, "candidate")}`;
    byId("answer-facts").textContent = isUnanimous(answer) ? "unanimous" : gapOf(candidates);
    byId("answer-notes").replaceChildren(...notesOf(answer), ...comparisonOf(candidates, model, second));
    byId("answer-bars").replaceChildren(barsOf(candidates, { chosen, tried, second, pick: PICK }));
    byId("answer-usage").replaceChildren(usageOf(stagesOfAct(answer)));
    const radios = [...byId("answer-bars").querySelectorAll("input")];
    const radio = radios.find(({ value }) => value === (picked ?? chosen));
    if (radio) radio.checked = true;
    this.showObservations();
  }

  get children() {
    return episodes.childrenOf(this.episode, this.episode.at);
  }

  /** What shall be done; the chosen action, unless another was picked. */
  get picked() {
    return new FormData(byId("take-form")).get(PICK);
  }

  /** @returns {Turn} */
  get pickedTurn() {
    const { answer } = episodes.current(this.episode);
    const index = candidatesOf(answer).findIndex(({ text }) => text === this.picked);
    return plainTurn(answer.candidates[index].message);
  }

  showPicked() {
    this.showObservations();
    this.drawCourse();
  }

  /** Fields for what the environment answers; a game of the server's fills them in. */
  async showObservations() {
    const reply = this.pickedTurn;
    this.observations.show(reply);
    byId("game-status").textContent = "";
    try {
      const answer = await this.game.answerTo(episodes.historyAt(this.episode), reply);
      if (!answer || byId("answer").hidden || textOf(this.pickedTurn) !== textOf(reply)) return;
      this.observations.fill(answer.observation);
      const ending = answer.ended ? ` It is over: ${answer.won ? "won" : "lost"}.` : "";
      byId("game-status").textContent = `Answered by game ${this.game.game?.number} of the server.${ending}`;
    } catch (error) {
      showError(byId("act-error"), error);
    }
  }

  /**
   * The picked action and what it brought become part of the history, if it is still the one that
   * the candidates were scored in.
   * @returns {boolean} whether it was
   */
  take() {
    const { answer } = episodes.current(this.episode);
    if (!episodes.sameTurns(episodes.historyAt(this.episode), this.turns.all)) {
      this.dropAnswer();
      byId("act-status").textContent =
        "Not taken: the turns are not those that the candidates were scored in. Act again.";
      return false;
    }
    const turns = [this.pickedTurn, ...this.observations.turns];
    const candidates = candidatesOf(answer);
    const taken = { text: String(this.picked), ...pointOf({ candidates, taken: this.picked }) };
    this.change(episodes.stepped(this.episode, taken, turns, newId));
    byId("turns").scrollTop = byId("turns").scrollHeight;
    byId("act-status").textContent = `Step ${episodes.pathTo(this.episode).length - 1} is taken.`;
    if (!episodes.current(this.episode).answer) byId("act-button").focus();
    return true;
  }

  dropAnswer() {
    byId("answer").hidden = true;
    byId("act-button").focus();
    this.drawCourse();
  }

  settleTree() {
    this.tree.show(this.episode);
    this.drawCourse();
    this.save();
  }

  drawCourse() {
    const path = episodes.pathTo(this.episode).map((at) => this.episode.states[at]);
    const { answer } = path.at(-1);
    const isOpen = answer && !byId("answer").hidden;
    const open = isOpen ? [pointOf({ candidates: candidatesOf(answer), taken: this.picked })] : [];
    const points = [...path.slice(1).map(({ taken }) => taken), ...open];
    byId("course").hidden = points.length < 2;
    this.draw(points, open.length ? points.length - 1 : -1);
  }
}

/**
 * @param {{ candidates: import("./candidates.js").Candidate[], taken: string }} step
 * @returns {import("./chart.js").Point}
 */
export function pointOf({ candidates, taken }) {
  const qs = candidates.flatMap(({ q }) => (q === null ? [] : [q]));
  return { qs, q: candidates.find(({ text }) => text === taken)?.q ?? null };
}

/** @param {HTMLInputElement} field */
function numberIn(field) {
  return field.value === "" ? null : field.valueAsNumber;
}

/** An episode's id of 16 hex digits; `crypto.randomUUID` wants HTTPS, this does not. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return `playground-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
