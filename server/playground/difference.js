/** How far two ways to choose differ on the same games, and how sure that is. Pure. */

const Z95 = 1.96;

/** Fewer pairs that end differently say nothing by this formula. */
const LEAST_GAMES = 10;

/**
 * The mean difference of paired wins with its 95 % interval, by Agresti and Min's adjusted Wald
 * formula for matched pairs (half a game is added to each of the four kinds of pairs).
 * @param {readonly boolean[]} first
 * @param {readonly boolean[]} second of the same games, in the same order
 */
export function differenceOf(first, second) {
  const games = Math.min(first.length, second.length);
  const pairs = first.slice(0, games).map((won, index) => [won, second[index]]);
  const above = pairs.filter(([a, b]) => a && !b).length + 0.5;
  const below = pairs.filter(([a, b]) => !a && b).length + 0.5;
  const all = games + 2;
  const mean = (above - below) / all;
  const half = (Z95 * Math.sqrt(above + below - (above - below) ** 2 / all)) / all;
  return { games, mean: (above - below) / Math.max(games, 1), low: mean - half, high: mean + half };
}

/**
 * The same in words.
 * @param {string} name of the first
 * @param {string} other of the second
 * @param {ReturnType<typeof differenceOf>} difference
 */
export function differenceText(name, other, { games, mean, low, high }) {
  const points = (share) => (100 * share).toFixed(0).replace("-", "−");
  const counted = `${games} ${games === 1 ? "game" : "games"} that both have played`;
  if (games < LEAST_GAMES) return `${counted}: too few to compare ${name} with ${other}.`;
  const verdict =
    low > 0 ? `${name} is better` : high < 0 ? `${name} is worse` : "which is better cannot be told yet";
  const interval = `${mean > 0 ? "+" : ""}${points(mean)} points (95 %: ${points(low)} to ${points(high)})`;
  return `${counted}: ${name} − ${other} ${interval}; ${verdict}.`;
}
