/** The page: which of its parts is open, who serves, and with which key. */

import { Act, newId } from "./act.js";
import { showError } from "./alert.js";
import { byId, fillFromTemplates, offer } from "./dom.js";
import { newEpisode } from "./episode.js";
import { EXAMPLE, EXAMPLE_CANDIDATES } from "./example.js";
import { knowsOf } from "./knows.js";
import { Learning } from "./learning.js";
import { kept } from "./link.js";
import { Live } from "./live.js";
import { plainTurn } from "./messages.js";
import { OwnGame } from "./own_game.js";
import { Parts } from "./parts.js";
import { Play } from "./play.js";
import { Race } from "./race.js";
import { Recorded } from "./recorded.js";
import { Score } from "./score.js";
import { getAbilities, getModels, key } from "./server.js";
import { Turns } from "./turns.js";

/** Parts that show the turns. */
const WITH_STATE = ["act", "score"];

/** Shows what this server can do. */
async function showAbilities() {
  const abilities = await getAbilities();
  byId("key-form").hidden = !abilities.needs_key;
  byId("perturb").hidden = !abilities.perturb;
  const field = byId("act-form").elements.num_candidates;
  field.value ||= String(Math.min(abilities.num_candidates, abilities.max_candidates));
  field.max = String(abilities.max_candidates);
  return abilities;
}

/** Offers the policies and Q models that are served. */
function showModels(models) {
  const { data: policies, q_models: qModels } = models;
  const names = [...Object.keys(models.splits), ...Object.keys(models.aliases)];
  const choices = [...names, ...qModels.map((card) => card.id)].filter((name) => name !== "default");
  for (const form of [byId("act-form"), byId("score-form")]) {
    offer(form.elements.q_model, [["", "the server's default"], ...choices.map(asChoice)]);
    offer(byId("race-form").elements.q_model, [["", "the server's default"], ...choices.map(asChoice)]);
    offer(form.elements.compare, [["", "nothing"], ...choices.map(asChoice)]);
  }
  const others = policies.map((card) => asChoice(card.id));
  offer(byId("act-form").elements.policy, [["", "the server's default"], ...others]);
  const policy = policies.find((card) => card.default)?.id ?? "no policy";
  const judges = qModels.filter((card) => card.default && card.source !== "none");
  const learns = !byId("tab-learning").hidden;
  const unjudged = learns ? "learning" : "unguided";
  const guided = judges.length ? `judged by ${judges.map((card) => card.id).join(" or ")}` : unjudged;
  byId("served").textContent = `${policy}, ${guided}`;
  byId("knows").textContent = knowsOf(models, learns);
}

/** @param {string} name */
function asChoice(name) {
  return /** @type {[string, string]} */ ([name, name]);
}

/** @type {Promise<any> | null} what was asked last; an earlier answer is for another key */
let asking = null;

/** Asks who serves; an error is shown in the same place. */
async function tryModels() {
  const mine = getModels();
  asking = mine;
  try {
    const models = await mine;
    if (asking === mine) showModels(models);
  } catch (error) {
    if (asking === mine) showError(byId("served"), error);
  }
}

/** @param {SubmitEvent} event */
function useKey(event) {
  event.preventDefault();
  key.set(byId("key").value.trim());
  dispatchEvent(new Event("keychange"));
  tryModels();
}

/**
 * Fields as they were before a reload.
 * @param {[name: string, value: string | boolean][]} form
 */
function restoreFields(form) {
  const { elements } = byId("act-form");
  for (const [name, value] of form) {
    const field = elements.namedItem(name);
    if (field?.type === "checkbox") field.checked = Boolean(value);
    else if (field?.tagName === "SELECT") offer(field, [[String(value), String(value)]]);
    else if (field) field.value = String(value);
  }
}

/** The episode of before a reload, or the example; with the turns as they were typed. */
function startEpisode() {
  const before = kept();
  const turns = new Turns(byId("turns"));
  const act = new Act(turns, before?.episode ?? newEpisode(EXAMPLE, newId()), new OwnGame(before?.game));
  if (!before) return { turns, act };
  try {
    turns.all = before.turns.map(plainTurn);
    restoreFields(before.form);
  } catch {
    // written by another version of the page: the episode alone is there
  }
  act.save();
  return { turns, act };
}

async function main() {
  fillFromTemplates();
  const { turns, act } = startEpisode();
  new Score(turns, EXAMPLE_CANDIDATES);
  const withGames = [act.game, new Play(), new Race()];
  const recorded = new Recorded();
  const live = new Live((file) => recorded.openRows(file));
  const learning = new Learning();
  const parts = new Parts((part) => {
    byId("act-form").hidden = part !== "act";
    byId("state").hidden = !WITH_STATE.includes(part);
    live.askIn(0);
    learning.askIn(0);
  });
  for (const button of document.querySelectorAll("[data-closes]")) {
    button.addEventListener("click", () => (byId(button.dataset.closes).hidden = true));
  }
  byId("add-turn").addEventListener("click", () => turns.addEmpty());
  byId("example").addEventListener("click", () => act.begin(EXAMPLE));
  byId("key").value = key.get();
  byId("key-form").addEventListener("submit", useKey);
  addEventListener("hashchange", () => {
    act.tree.openLink();
    parts.open();
  });
  await act.tree.openLink();
  parts.open();
  try {
    const { needs_key: needsKey, recorded: lists, learns, games } = await showAbilities();
    if (lists) live.start();
    if (learns) learning.start();
    if (games) for (const part of withGames) part.offer(games);
    byId("about-play").hidden = !games;
    if (needsKey && !key.get()) byId("served").textContent = "This server wants a key.";
    else await tryModels();
  } catch (error) {
    showError(byId("served"), error);
  }
}

main();
