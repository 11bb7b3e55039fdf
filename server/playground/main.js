/** The page: which of its three parts is open, who serves, and with which key. */

import { Act } from "./act.js";
import { showError } from "./alert.js";
import { byId, offer } from "./dom.js";
import { EXAMPLE, EXAMPLE_CANDIDATES } from "./example.js";
import { Recorded } from "./recorded.js";
import { Score } from "./score.js";
import { getAbilities, getModels, key } from "./server.js";
import { Turns } from "./turns.js";

const PARTS = ["act", "score", "records"];

/** Opens the part that the address names. */
function openPart() {
  const named = location.hash.slice(1);
  const open = PARTS.includes(named) ? named : PARTS[0];
  for (const part of PARTS) {
    byId(part).hidden = part !== open;
    const link = document.querySelector(`nav a[href="#${part}"]`);
    if (part === open) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  byId("state").hidden = open === "records";
}

/** Shows what this server can do. */
async function showAbilities() {
  const abilities = await getAbilities();
  byId("key-form").hidden = !abilities.needs_key;
  byId("perturb").hidden = !abilities.perturb;
  const field = byId("act-form").elements.num_candidates;
  field.value = String(Math.min(abilities.num_candidates, abilities.max_candidates));
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
  }
  const others = policies.map((card) => asChoice(card.id));
  offer(byId("act-form").elements.policy, [["", "the server's default"], ...others]);
  const policy = policies.find((card) => card.default)?.id ?? "no policy";
  const judges = qModels.filter((card) => card.default).map((card) => card.id);
  byId("served").textContent = `${policy}, judged by ${judges.join(" or ")}`;
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
  tryModels();
}

async function main() {
  const turns = new Turns(byId("turns"));
  turns.all = EXAMPLE;
  const act = new Act(turns);
  new Score(turns, EXAMPLE_CANDIDATES);
  new Recorded();
  byId("add-turn").addEventListener("click", () => turns.addEmpty());
  byId("example").addEventListener("click", () => {
    turns.all = EXAMPLE;
    act.begin();
  });
  byId("key").value = key.get();
  byId("key-form").addEventListener("submit", useKey);
  addEventListener("hashchange", openPart);
  openPart();
  try {
    const { needs_key: needsKey } = await showAbilities();
    if (needsKey && !key.get()) byId("served").textContent = "This server wants a key.";
    else await tryModels();
  } catch (error) {
    showError(byId("served"), error);
  }
}

main();
