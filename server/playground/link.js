/**
 * An episode as a link, and kept in this tab. The link holds the episode itself, compressed, behind
 * the # that browsers never send to a server; the key is in neither.
 */

import { NoEpisodeError, readEpisode } from "./episode.js";

/** @typedef {import("./episode.js").Episode} Episode */

export const IN_LINK = "#episode=";
const KEPT = "qguide.episode";
/** Chromium opens no longer address. */
const MAX_LINK_CHARACTERS = 2_000_000;
/** A short link can hold a long text; a longer one than any episode's is given up. */
const MAX_BYTES = 16_000_000;

/**
 * What stands behind the # of an episode's link.
 * @param {Episode} episode
 */
export async function hashOf(episode) {
  const packed = through(new Blob([JSON.stringify(episode)]), new CompressionStream("deflate-raw"));
  const bytes = await bytesOf(packed, MAX_LINK_CHARACTERS, "a link");
  const base64 = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const hash = IN_LINK + base64.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  if (hash.length > MAX_LINK_CHARACTERS) throw tooLong("a link");
  return hash;
}

/**
 * The episode of a link.
 * @param {string} hash
 * @returns {Promise<Episode>}
 * @throws {NoEpisodeError}
 */
export async function episodeOf(hash) {
  const base64 = hash.slice(IN_LINK.length).replaceAll("-", "+").replaceAll("_", "/");
  let text;
  try {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const unpacked = through(new Blob([bytes]), new DecompressionStream("deflate-raw"));
    text = new TextDecoder("utf-8", { fatal: true }).decode(await bytesOf(unpacked, MAX_BYTES, "the page"));
    return readEpisode(JSON.parse(text));
  } catch (error) {
    if (error instanceof NoEpisodeError) throw error;
    throw new NoEpisodeError("it is incomplete or was changed; copy the whole link");
  }
}

/**
 * @param {Blob} blob
 * @param {any} transform
 */
function through(blob, transform) {
  return blob.stream().pipeThrough(transform);
}

/**
 * @param {ReadableStream<Uint8Array>} stream
 * @param {number} most
 * @param {string} place what takes no more
 */
async function bytesOf(stream, most, place) {
  const chunks = [];
  let size = 0;
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) {
      reader.cancel().catch(() => {});
      throw tooLong(place);
    }
    chunks.push(value);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

/** @param {string} place */
function tooLong(place) {
  return new NoEpisodeError(`the episode is longer than ${place} takes; forget the other branches`);
}

/**
 * Keeps values for a reload of this tab; tells whether the browser took them.
 * @param {unknown} value
 */
export function keep(value) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or refused by the browser's settings
  }
}

/**
 * What was kept, with its episode; null if nothing was, or if it cannot be read any more.
 * @returns {{ episode: Episode, [more: string]: any } | null}
 */
export function kept() {
  try {
    const value = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
    return value && { ...value, episode: readEpisode(value.episode) };
  } catch {
    return null;
  }
}
