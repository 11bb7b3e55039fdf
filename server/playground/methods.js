/**
 * Ways to choose an action, as questions to /v1/act. Pure.
 *
 * random and guided draw with the same seeds, so that in equal states they have the same candidates.
 *
 * @typedef {{ candidates: number, temperature: number, seed: number, qModel: string | null }} Options
 * @typedef {{ id: string, title: string, about: string, body: (options: Options, seed: number) => object,
 *   pick: (answer: any, random: () => number) => number, scores: boolean }} Method
 *   `scores`: whether what the Q model reads belongs to the method's cost
 */

/** @type {Method[]} */
export const METHODS = [
  {
    id: "greedy",
    title: "Greedy",
    about: "one candidate, at temperature 0",
    body: () => ({ num_candidates: 1, temperature: 0 }),
    pick: () => 0,
    scores: false,
  },
  {
    id: "random",
    title: "Random of M",
    about: "one of the M draws, by chance",
    body: drawing,
    pick: (answer, random) => Math.floor(random() * answer.candidates.length),
    scores: false,
  },
  {
    id: "guided",
    title: "Guided",
    about: "the draw that the server chooses by Q",
    body: drawing,
    pick: (answer) => answer.chosen,
    scores: true,
  },
];

/**
 * @param {Options} options
 * @param {number} seed
 */
function drawing({ candidates, temperature, qModel }, seed) {
  return { num_candidates: candidates, temperature, seed, q_model: qModel };
}

/**
 * The seed of one step of one game.
 * @param {number} seed
 * @param {number} game
 * @param {number} step
 */
export function seedOf(seed, game, step) {
  return (seed * 1_000_003 + game * 1_009 + step) % 2 ** 31;
}

/**
 * Numbers from 0 to 1 that are the same for the same seed (mulberry32).
 * @param {number} seed
 */
export function randomOf(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
