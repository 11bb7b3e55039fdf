/**
 * Episodes out of JSONL files that were written by others. Pure.
 *
 *     offers-….jsonl   of the server: the candidates of each step, their Q, what was chosen, taken
 *     trees-….jsonl    of the server: what was seen; joined to the offers of the same episode
 *     rows.jsonl       of `qguide choice-regret`: candidates, Q, and the steps that an expert needs after each
 *     choices.jsonl    of `qguide choose-recorded`: candidates of real LLMs, Q, and what was right
 *
 * Trees that are no recorded episode's are drawn as such (see trees.js).
 *
 * A line that is none of these is told with its number and leaves the others alone.
 *
 * @typedef {import("./candidates.js").Candidate} Candidate
 * @typedef {{ number: number, candidates: Candidate[], chosen: string, taken: string,
 *   by: string, seen: string | null, after: string | null }} RecordedStep
 * @typedef {{ task: string, reward: number, steps: RecordedStep[] }} Episode
 * @typedef {{ file: string, line: number, why: string }} BadLine
 * @typedef {{ model: string, said: string, answer: string | null, q_value: number, valid: boolean,
 *   reward: number }} Offered
 * @typedef {{ task_id: string, asked: string, candidates: Offered[], by_q: number[], by_rule: number[] }} Choice
 * @typedef {{ episodes: Episode[], trees: import("./trees.js").Tree[], choices: Choice[], bad: BadLine[] }} Records
 *   `trees` are those that are no recorded episode's
 */

import { treesOf } from "./trees.js";

/** Why a line is no record. */
class BadRecord extends Error {}

/**
 * @param {{ name: string, text: string }[]} files
 * @returns {Records}
 */
export function readRecords(files) {
  const rows = files.flatMap(({ name, text }) => rowsOf(name, text));
  const bad = rows.filter(({ why }) => why).map(({ file, line, why }) => ({ file, line, why }));
  const ofKind = (kind) => rows.filter((row) => row.kind === kind).map(({ value }) => value);
  const served = episodesOf(ofKind("offer"));
  const unused = new Set(ofKind("tree"));
  served.forEach((episode) => joinTree(episode, unused));
  const trees = treesOf([...unused]);
  return { episodes: [...served, ...ofKind("judged").map(judgedEpisode)], trees, choices: ofKind("choice"), bad };
}

function rowsOf(file, text) {
  return text.split("\n").flatMap((source, index) => {
    if (!source.trim()) return [];
    const place = { file, line: index + 1 };
    try {
      return [{ ...place, ...kindOf(JSON.parse(source)) }];
    } catch (error) {
      if (!(error instanceof BadRecord || error instanceof SyntaxError)) throw error;
      return [{ ...place, why: error instanceof BadRecord ? error.message : "no JSON" }];
    }
  });
}

/** What a line is, once its fields are what they have to be. */
function kindOf(value) {
  if (value === null || typeof value !== "object") throw new BadRecord("no object");
  if (isOldGroup(value)) throw new BadRecord("is a decision group of before; `qguide convert-records` makes it a tree");
  if ("decisions" in value) return { kind: "judged", value: checkedJudged(value) };
  if ("by_q" in value) return { kind: "choice", value: checkedChoice(value) };
  if ("nodes" in value) return { kind: "tree", value: checkedTree(value) };
  if ("candidates" in value) return { kind: "offer", value: checkedOffer(value) };
  throw new BadRecord("is no offer, tree, choice or row of choice-regret");
}

function checkedOffer(value) {
  const { task_id, depth, candidates, chosen, taken, outcome_reward } = value;
  want("task_id", isText(task_id));
  want("depth", Number.isInteger(depth) && depth > 0);
  want("candidates", isList(candidates) && candidates.every(isCandidate));
  want("chosen", isText(chosen));
  want("taken", isText(taken));
  want("outcome_reward", Number.isFinite(outcome_reward));
  return value;
}

function checkedTree(value) {
  want("task_id", isText(value.task_id));
  want("first_observation", isText(value.first_observation));
  want("nodes", isList(value.nodes) && value.nodes.every(isNode));
  const { values = {}, nodes } = value;
  const columns = values && typeof values === "object" ? Object.values(values) : [null];
  want("values", columns.every((column) => isList(column) && column.length === nodes.length && column.every(isQ)));
  return value;
}

function checkedJudged(value) {
  want("task_id", isText(value.task_id));
  want("reward", Number.isFinite(value.reward));
  want("decisions", isList(value.decisions) && value.decisions.every(isDecision));
  return value;
}

function checkedChoice(value) {
  const { task_id, asked, candidates, by_q, by_rule } = value;
  want("task_id", isText(task_id));
  want("asked", isText(asked));
  want("candidates", isList(candidates) && candidates.every(isOffered));
  const arePlaces = (list) => isList(list) && list.length > 0 && list.every((place) => place in candidates);
  want("by_q or by_rule", [by_q, by_rule].every(arePlaces));
  return value;
}

function want(field, isThere) {
  if (!isThere) throw new BadRecord(`${field} is missing or not what it should be`);
}

const isOldGroup = ({ decisions }) => isList(decisions) && decisions.some((one) => one && "candidates" in Object(one));
const isText = (value) => typeof value === "string";
const isList = (value) => Array.isArray(value);
const isQ = (value) => value === null || Number.isFinite(value);
const isCandidate = (value) => isText(value?.content) && isQ(value.q_value);
const isOffered = (value) =>
  [value?.model, value?.said].every(isText) &&
  (value.answer === null || isText(value.answer)) &&
  [value.q_value, value.reward].every(Number.isFinite);
const isCall = (value) => isText(value?.name) && isText(value.arguments);
const isMessage = (value) =>
  ["system", "developer", "user", "assistant", "tool"].includes(value?.role) &&
  isText(value.content) &&
  (value.tool_calls ?? []).every(isCall);
/** An action, what it brought, and both as messages if they are more than texts. */
const isAction = (value) => {
  const { action, observation, reply, observed, reward = 0 } = value ?? {};
  const messages = [...(reply ? [reply] : []), ...(observed ?? [])];
  return isText(action) && isText(observation) && Number.isFinite(reward) && messages.every(isMessage);
};
const isRollout = (value) => [value?.outcome_reward, value?.steps].every(Number.isFinite);
const isNode = (value, index) => {
  const { parent, count = 1, rollouts = [] } = value ?? {};
  const placed = Number.isInteger(parent) && parent >= 0 && parent <= index;
  return isAction(value) && placed && Number.isInteger(count) && isList(rollouts) && rollouts.every(isRollout);
};
const isDecision = (value) => {
  const lists = [value?.replies, value?.q_values, value?.draws, value?.steps];
  return (
    Number.isInteger(value?.step) &&
    lists.every((list) => isList(list) && list.length === value.replies.length) &&
    value.replies.every(isText) &&
    [value.q_values, value.draws, value.steps].flat().every(Number.isFinite) &&
    value.chosen in value.replies
  );
};

/** Offers of one episode stand together, step after step; the next task or a step back is another. */
function episodesOf(offers) {
  /** @type {Episode[]} */
  const episodes = [];
  for (const offer of offers) {
    const { task_id: task, depth, outcome_reward: reward } = offer;
    const last = episodes.at(-1);
    const goesOn = last?.task === task && last.reward === reward && last.steps.at(-1).number < depth;
    if (!goesOn) episodes.push({ task, reward, steps: [] });
    episodes.at(-1).steps.push(offeredStep(offer));
  }
  return episodes;
}

/** @returns {RecordedStep} */
function offeredStep({ depth, candidates, chosen, taken, policy, q_model: qModel }) {
  return {
    number: depth,
    candidates: candidates.map(({ content, q_value: q }) => ({ text: content, q })),
    chosen,
    taken,
    by: [policy, qModel].filter(isText).join(", judged by "),
    seen: null,
    after: null,
  };
}

/** What was seen, from the first tree of the task that has these actions. */
function joinTree(episode, unused) {
  for (const tree of unused) {
    const { nodes, first_observation: first } = tree;
    const fits = episode.steps.every(({ number, taken }) => nodes[number - 1]?.action === taken);
    if (tree.task_id !== episode.task || !fits) continue;
    unused.delete(tree);
    for (const step of episode.steps) {
      step.seen = step.number === 1 ? first : nodes[step.number - 2].observation;
      step.after = nodes[step.number - 1].observation;
    }
    return;
  }
}

/** @returns {Episode} */
function judgedEpisode({ task_id: task, reward, decisions }) {
  return { task, reward, steps: decisions.map(judgedStep) };
}

/** @returns {RecordedStep} */
function judgedStep({ step, replies, draws, q_values: qs, steps, chosen }) {
  return {
    number: step + 1,
    candidates: replies.map((text, index) => ({
      text,
      q: qs[index],
      count: draws[index],
      note: `then ${steps[index]} steps`,
    })),
    chosen: replies[chosen],
    taken: replies[chosen],
    by: "",
    seen: null,
    after: null,
  };
}
