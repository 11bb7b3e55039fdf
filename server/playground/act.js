/** Stepping through an episode with guidance. */

import { showError } from "./alert.js";
import { barsOf, gapOf } from "./bars.js";
import { chartIn } from "./chart.js";
import { byId, el, show } from "./dom.js";
import { actAsCurl, postAct } from "./server.js";
import { stagesOfAct, usageOf } from "./usage.js";

/**
 * @typedef {import("./turns.js").Turns} Turns
 * @typedef {import("./turns.js").Turn} Turn
 * @typedef {import("./candidates.js").Candidate} Candidate
 * @typedef {{ candidates: Candidate[], taken: string }} Step
 */

const PICK = "pick";
const REASONS = {
  highest_q: "it has the highest Q",
  tied_highest_q: "it came first among those of the highest Q",
  only_candidate: "there was no other",
  unanimous: "all candidates are the same, so none was scored",
  fallback: "no Q could be given and it came first",
};

export class Act {
  /** @param {Turns} turns the history, which grows with the episode */
  constructor(turns) {
    this.turns = turns;
    this.form = byId("act-form");
    this.draw = chartIn(byId("course-chart"));
    /** @type {AbortController | null} */
    this.asking = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.act();
    });
    byId("take-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.take() && event.submitter?.value === "act") this.act();
    });
    byId("take-form").addEventListener("change", () => this.drawCourse());
    byId("observation").addEventListener("keydown", (event) => {
      const meant = event.key === "Enter" && (event.ctrlKey || event.metaKey);
      if (meant) byId("take-form").requestSubmit(byId("take-act"));
    });
    byId("act-stop").addEventListener("click", () => this.asking?.abort());
    byId("act-curl").addEventListener("click", () => this.copyAsCurl());
    byId("act-over").addEventListener("click", () => this.startOver());
    this.begin();
  }

  /** A new episode; the history is whatever stands there. */
  begin() {
    this.forget();
    this.episodeId = `playground-${randomId()}`;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {readonly Turn[] | null} */
    this.start = null;
    this.answer = null;
    byId("answer").hidden = true;
    byId("observation").value = "";
    byId("act-status").textContent = "";
    show(byId("act-error"));
    this.drawCourse();
  }

  startOver() {
    if (this.start) this.turns.all = this.start;
    this.begin();
    byId("act-status").textContent = "A new episode.";
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
      perturb: elements.perturb.checked,
      episode_id: this.episodeId,
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
    const request = this.request();
    this.forget();
    const asking = new AbortController();
    this.asking = asking;
    this.settle();
    byId("act-status").textContent = "Drawing and scoring …";
    try {
      const answer = await postAct(request, asking.signal);
      if (this.asking === asking) this.showAnswer(answer, request);
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

  showAnswer(answer, request) {
    const candidates = answer.candidates.map(candidateOf);
    this.start ??= request.messages;
    const { messages } = request;
    this.answer = { candidates, chosen: candidates[answer.chosen].text, messages };
    const number = this.steps.length + 1;
    byId("act-status").textContent = "";
    byId("answer-title").textContent = `Step ${number}: ${candidates.length} candidates`;
    byId("answer-facts").textContent = gapOf(candidates);
    byId("answer-notes").replaceChildren(...notesOf(answer));
    byId("answer-bars").replaceChildren(
      barsOf(candidates, { chosen: this.answer.chosen, pick: PICK }),
    );
    byId("answer-usage").replaceChildren(usageOf(stagesOfAct(answer)));
    byId("answer").hidden = false;
    this.drawCourse();
    byId("answer-title").focus();
  }

  /** What shall be done; the chosen action, unless another was picked. */
  get picked() {
    return new FormData(byId("take-form")).get(PICK);
  }

  /**
   * The picked action and what it brought become part of the history, if it is still the one that
   * the candidates were scored in.
   * @returns {boolean} whether it was
   */
  take() {
    const { candidates, messages } = this.answer;
    if (!sameTurns(messages, this.turns.all)) {
      this.dropAnswer();
      byId("act-status").textContent =
        "Not taken: the turns are not those that the candidates were scored in. Act again.";
      return false;
    }
    this.forget();
    const taken = String(this.picked);
    const field = byId("observation");
    this.turns.add(
      { role: "assistant", content: taken },
      { role: "user", content: field.value },
    );
    this.steps.push({ candidates, taken });
    field.value = "";
    this.dropAnswer();
    byId("act-status").textContent = `Step ${this.steps.length} is taken.`;
    return true;
  }

  dropAnswer() {
    this.answer = null;
    byId("answer").hidden = true;
    byId("act-button").focus();
    this.drawCourse();
  }

  drawCourse() {
    const open = this.answer ? [{ candidates: this.answer.candidates, taken: this.picked }] : [];
    const points = [...this.steps, ...open].map(pointOf);
    byId("course").hidden = points.length < 2;
    this.draw(points, open.length ? points.length - 1 : -1);
  }

  async copyAsCurl() {
    if (this.isUnreadable()) return;
    const field = byId("curl");
    field.value = actAsCurl(this.request());
    byId("curl-box").hidden = false;
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
      byId("act-status").textContent = "Copied.";
    } catch {
      byId("act-status").textContent = "This browser does not let a page copy; the text is selected.";
    }
  }
}

/** @returns {Candidate} */
function candidateOf({ message, q_value: q }) {
  const calls = (message.tool_calls ?? []).map(
    (call) => `Action: ${(call.function ?? call.custom).name}(${call.function?.arguments ?? call.custom.input})`,
  );
  return { text: [message.content, ...calls].filter(Boolean).join("\n"), q };
}

/**
 * @param {readonly Turn[]} before
 * @param {readonly Turn[]} now
 */
function sameTurns(before, now) {
  return JSON.stringify(before) === JSON.stringify(now);
}

/** @param {Step} step */
export function pointOf({ candidates, taken }) {
  const qs = candidates.flatMap(({ q }) => (q === null ? [] : [q]));
  return { qs, q: candidates.find(({ text }) => text === taken)?.q ?? null };
}

function notesOf(answer) {
  const model = `${answer.q_model}@${answer.q_model_version}`;
  const guided = answer.guided
    ? el("p", {}, el("strong", { className: "good", textContent: "Guided" }), ` by ${model}`)
    : el("p", {}, el("strong", { className: answer.reason === "fallback" ? "bad" : "", textContent: "Not guided" }));
  guided.append(`: chosen because ${REASONS[answer.reason] ?? answer.reason}.`);
  const more = [
    answer.unguided_reason,
    answer.draws_saved ? `Adaptive M did without ${answer.draws_saved} draws.` : null,
    answer.perturbed ? `${answer.perturbed} candidates were drawn under a paraphrase.` : null,
    ...answer.warnings,
  ];
  const lines = more.filter(Boolean).map((textContent) => el("p", { className: "note", textContent }));
  return [guided, ...lines];
}

/** @param {HTMLInputElement} field */
function numberIn(field) {
  return field.value === "" ? null : field.valueAsNumber;
}

/** 16 hex digits; `crypto.randomUUID` wants HTTPS, this does not. */
function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
