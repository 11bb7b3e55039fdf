/**
 * An episode with all its branches, as a plain value. Pure.
 *
 * A state is what the agent has seen at some point. Its answer holds the candidates that were drawn
 * there; each candidate that was taken leads to a state of its own, so that nothing is lost by going
 * back and taking another.
 *
 * @typedef {import("./messages.js").Turn} Turn
 * @typedef {import("./candidates.js").Candidate} Candidate
 * @typedef {{ name: string, judge: boolean, qs: [text: string, q: number | null][] }} Second
 *   what a second Q model gave to the same candidates
 * @typedef {{ text: string, q: number | null, qs: number[] }} Taken
 * @typedef {{ parent: number | null, turns: Turn[], taken: Taken | null, answer: any,
 *   second: Second | null, episode: string }} State
 *   `turns` are those since the parent; `answer` is the server's, or null; `episode` is the id by
 *   which the server knows this branch
 * @typedef {{ states: State[], at: number }} Episode `at` is the state that is shown
 */

import { plainTurn } from "./messages.js";

/** What was opened holds no episode; the message says why. */
export class NoEpisodeError extends Error {}

/**
 * @param {readonly Turn[]} turns
 * @param {string} id
 * @returns {Episode}
 */
export function newEpisode(turns, id) {
  return { states: [rootOf(turns, id)], at: 0 };
}

/**
 * @param {readonly Turn[]} turns
 * @param {string} episode
 * @returns {State}
 */
function rootOf(turns, episode) {
  return { parent: null, turns: [...turns], taken: null, answer: null, second: null, episode };
}

/** @param {Episode} episode */
export const current = ({ states, at }) => states[at];

/**
 * Numbers of the states from the beginning to this one.
 * @param {Episode} episode
 * @param {number} [at]
 */
export function pathTo({ states, at: now }, at = now) {
  const path = [];
  for (let number = /** @type {number | null} */ (at); number !== null; number = states[number].parent) {
    path.unshift(number);
  }
  return path;
}

/**
 * @param {Episode} episode
 * @param {number} [at]
 * @returns {Turn[]}
 */
export function historyAt(episode, at) {
  return pathTo(episode, at).flatMap((number) => episode.states[number].turns);
}

/**
 * @param {Episode} episode
 * @param {number} at
 */
export function childrenOf({ states }, at) {
  return states.flatMap(({ parent }, number) => (parent === at ? [number] : []));
}

/** @param {Episode} episode */
export function rootsOf({ states }) {
  return states.flatMap(({ parent }, number) => (parent === null ? [number] : []));
}

/**
 * @param {Episode} episode
 * @param {number} at
 * @returns {Episode}
 */
export function movedTo({ states }, at) {
  return { states, at };
}

/**
 * Another beginning beside those that are there.
 * @param {Episode} episode
 * @param {readonly Turn[]} turns
 * @param {string} id
 * @returns {Episode}
 */
export function begunAgain({ states }, turns, id) {
  return { states: [...states, rootOf(turns, id)], at: states.length };
}

/**
 * The episode before a request: turns that were edited are another beginning, and a state from
 * which the episode has gone on is asked under a new id, because the server takes an episode's
 * steps in order.
 * @param {Episode} episode
 * @param {readonly Turn[]} turns as they stand in the page
 * @param {() => string} newId
 * @returns {Episode}
 */
export function asked(episode, turns, newId) {
  const { states, at } = episode;
  const state = states[at];
  if (!sameTurns(historyAt(episode), turns)) {
    const untouched = state.parent === null && !state.answer && !childrenOf(episode, at).length;
    return untouched ? changed(episode, rootOf(turns, state.episode)) : begunAgain(episode, turns, newId());
  }
  return childrenOf(episode, at).length ? changed(episode, { episode: newId() }) : episode;
}

/**
 * The answer to what was asked in the current state.
 * @param {Episode} episode
 * @param {any} answer
 * @returns {Episode}
 */
export function answered(episode, answer) {
  return changed(episode, { answer, second: null });
}

/**
 * What a second Q model gave to the current state's candidates.
 * @param {Episode} episode
 * @param {Second} second
 * @returns {Episode}
 */
export function compared(episode, second) {
  return changed(episode, { second });
}

/**
 * One step on; the state that the same step led to before, if there is one.
 * @param {Episode} episode
 * @param {Taken} taken
 * @param {Turn[]} turns the action and what was observed
 * @param {() => string} newId of a second branch
 * @returns {Episode}
 */
export function stepped(episode, taken, turns, newId) {
  const { states, at } = episode;
  const children = childrenOf(episode, at);
  const known = children.find((number) => sameTurns(states[number].turns, turns));
  if (known !== undefined) return movedTo(episode, known);
  const id = children.length ? newId() : states[at].episode;
  const next = { parent: at, turns, taken, answer: null, second: null, episode: id };
  return { states: [...states, next], at: states.length };
}

/**
 * Q of the action before this state, where the server does not know it: in the first state of a
 * branch, whose id is new.
 * @param {Episode} episode
 * @returns {number | null}
 */
export function previousQ({ states, at }) {
  const { parent, taken, episode } = states[at];
  return parent === null || states[parent].episode === episode ? null : taken?.q ?? null;
}

/**
 * Two episodes as one, the second one shown.
 * @param {Episode} first
 * @param {Episode} second
 * @returns {Episode}
 */
export function joined(first, second) {
  const by = first.states.length;
  const moved = second.states.map((state) => ({
    ...state,
    parent: state.parent === null ? null : state.parent + by,
  }));
  return { states: [...first.states, ...moved], at: second.at + by };
}

/**
 * The current path alone; all other branches are forgotten.
 * @param {Episode} episode
 * @returns {Episode}
 */
export function pathAlone(episode) {
  const states = pathTo(episode).map((number, index) => ({
    ...episode.states[number],
    parent: index ? index - 1 : null,
  }));
  return { states, at: states.length - 1 };
}

/**
 * @param {readonly Turn[]} before
 * @param {readonly Turn[]} now
 */
export function sameTurns(before, now) {
  return JSON.stringify(before) === JSON.stringify(now);
}

/**
 * An episode out of what a link or this tab's storage held, which anyone may have written.
 * @param {any} value
 * @returns {Episode}
 * @throws {NoEpisodeError}
 */
export function readEpisode(value) {
  const { states, at } = value ?? {};
  if (!Array.isArray(states) || !Number.isInteger(at) || !(at in states)) {
    throw new NoEpisodeError("it has no states, or shows none of them");
  }
  return { states: states.map(readState), at };
}

/**
 * @param {any} value
 * @param {number} number
 * @returns {State}
 */
function readState(value, number) {
  const { parent, turns, taken, answer, second, episode } = value ?? {};
  const problem = (what) => new NoEpisodeError(`state ${number + 1} ${what}`);
  const isRoot = parent === null;
  if (!isRoot && !(Number.isInteger(parent) && parent >= 0 && parent < number)) {
    throw problem("does not follow an earlier one");
  }
  if (typeof episode !== "string" || !Array.isArray(turns)) throw problem("has no id or no turns");
  if (!isRoot && !isTaken(taken)) throw problem("does not say which action led there");
  if (answer !== null && !isAnswer(answer)) throw problem("has an answer without candidates");
  try {
    const plain = turns.map(plainTurn);
    return { parent, turns: plain, taken: isRoot ? null : taken, answer, second: readSecond(second), episode };
  } catch (error) {
    throw problem(`has a turn that is none: ${error.message}`);
  }
}

const isQ = (value) => value === null || Number.isFinite(value);
const isTaken = (value) =>
  typeof value?.text === "string" && isQ(value.q) && Array.isArray(value.qs) && value.qs.every(Number.isFinite);

/** What is shown of an answer is there; the rest may be missing, and is not shown then. */
function isAnswer(value) {
  const { candidates, chosen, warnings, usage, timings_ms: timings } = value;
  const listed = Array.isArray(candidates) && candidates.every(isScored) && chosen in candidates;
  const numbers = (group, names) => names.every((name) => Number.isFinite(group?.[name]));
  return (
    listed &&
    Array.isArray(warnings) &&
    numbers(usage, ["prompt_tokens", "completion_tokens", "scored_tokens"]) &&
    numbers(usage, ["cached_tokens", "cached_prompt_tokens", "paraphrase_tokens"]) &&
    numbers(timings, ["sample", "paraphrase", "score", "total"])
  );
}

function isScored({ message, q_value: q }) {
  try {
    return Boolean(plainTurn(message)) && isQ(q);
  } catch {
    return false;
  }
}

/**
 * @param {any} value
 * @returns {Second | null}
 */
function readSecond(value) {
  if (!value) return null;
  const { name, judge, qs } = value;
  const pairs = Array.isArray(qs) && qs.every((pair) => Array.isArray(pair) && typeof pair[0] === "string" && isQ(pair[1]));
  return typeof name === "string" && pairs ? { name, judge: Boolean(judge), qs } : null;
}

/**
 * @param {Episode} episode
 * @param {Partial<State>} fields of the current state
 * @returns {Episode}
 */
function changed({ states, at }, fields) {
  return { states: states.map((state, number) => (number === at ? { ...state, ...fields } : state)), at };
}
