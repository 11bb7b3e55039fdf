/** What an answer cost: tokens and time per stage. */

import { el } from "./dom.js";

/** @typedef {{ stage: string, ms: number, computed?: number, cached?: number, sampled?: number }} Stage */

/**
 * The stages of an answer from /v1/act.
 * @param {any} answer
 * @returns {Stage[]}
 */
export function stagesOfAct({ usage, timings_ms: timings }) {
  const paraphrasing = { stage: "Paraphrase", ms: timings.paraphrase, sampled: usage.paraphrase_tokens };
  return [
    {
      stage: "Draw",
      ms: timings.sample,
      computed: usage.prompt_tokens - usage.cached_prompt_tokens,
      cached: usage.cached_prompt_tokens,
      sampled: usage.completion_tokens,
    },
    ...(timings.paraphrase || usage.paraphrase_tokens ? [paraphrasing] : []),
    ...stagesOfScore({ usage, timings_ms: timings }),
  ];
}

/**
 * The stages of an answer from /v1/score.
 * @param {any} answer
 * @returns {Stage[]}
 */
export function stagesOfScore({ usage, timings_ms: timings }) {
  const scoring = { stage: "Score", ms: timings.score };
  return [
    { ...scoring, computed: usage.scored_tokens, cached: usage.cached_tokens },
    { stage: "All", ms: timings.total },
  ];
}

/** @param {Stage[]} stages */
export function usageOf(stages) {
  const heads = ["Stage", "computed", "cached", "sampled", "time"];
  const head = el("tr", {}, ...heads.map((textContent) => el("th", { scope: "col", textContent })));
  const rows = stages.map(({ stage, ms, computed, cached, sampled }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", textContent: stage }),
      ...[computed, cached, sampled].map((tokens) => el("td", { textContent: count(tokens) })),
      el("td", { textContent: `${ms.toFixed(ms < 100 ? 1 : 0)} ms` }),
    ),
  );
  const caption = el("caption", { textContent: "Tokens and time per stage" });
  return el("table", { className: "usage" }, caption, el("thead", {}, head), el("tbody", {}, ...rows));
}

/** @param {number | undefined} tokens */
function count(tokens) {
  return tokens === undefined ? "" : tokens.toLocaleString("en");
}
