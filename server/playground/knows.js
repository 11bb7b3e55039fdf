/** What the loaded models know, in words. Pure. */

/**
 * @typedef {{ id: string, name: string, source: string, default: boolean, environment: string | null,
 *   judge: { model: string } | null, licensed: boolean | null, licence: string | null }} Card
 */

const OWN = {
  alfworld: "ALFWorld, a text game of household tasks",
};

/**
 * Sentences about the models that requests get which name none.
 * @param {{ data: Card[], q_models: Card[] }} models
 * @param {boolean} learns from the outcomes of episodes
 */
export function knowsOf({ data, q_models: qModels }, learns = false) {
  const policy = data.find((card) => card.default);
  const judges = qModels.filter((card) => card.default);
  return [...(policy ? [ofPolicy(policy)] : []), ...judges.map((card) => ofQModel(card, learns))].filter(Boolean).join(" ");
}

/** @param {Card} policy */
function ofPolicy(policy) {
  if (policy.source === "scripted") return "The replies are a fixed script: they do not depend on the task.";
  if (policy.source === "upstream") return `Replies come from the upstream ${policy.name}.`;
  if (!policy.environment) return "";
  return `The policy ${policy.name} knows ${nameOf(policy)} alone, whatever the task is.`;
}

/**
 * @param {Card} card
 * @param {boolean} learns
 */
function ofQModel(card, learns) {
  if (card.source === "none") {
    if (learns) return "No Q model is named: one that is learned chooses among the candidates once a trial has shown that it helps.";
    return "No Q model is named, so nothing chooses among the candidates.";
  }
  if (card.source === "scripted") {
    return "Q-values are a fixed script, for trying out the page: they know nothing of any task. In qguide demo the replies are, too.";
  }
  if (card.source === "rules") return `${card.name} is a rule: it needs no training and knows no task.`;
  if (card.judge) return `Q is what ${card.judge.model} answers when it is asked to judge.`;
  return [trainedOn(card), licenceOf(card)].filter(Boolean).join(" ");
}

/** @param {Card} card */
function trainedOn(card) {
  if (card.environment === "imported") return `The Q model ${card.name} learned from recorded episodes, and knows tasks like theirs.`;
  if (!card.environment) return `Nothing says what the Q model ${card.name} was trained on.`;
  return `The Q model ${card.name} was trained on ${nameOf(card)}: its Q-values mean nothing for other tasks.`;
}

/** @param {Card} card */
function licenceOf({ source, licensed, licence }) {
  if (licensed === null) return ["checkpoint", "embedded"].includes(source) ? "Nothing has judged its choices beside the agent's own." : "";
  return `It has ${licensed ? "a" : "no"} licence: ${licence}.`;
}

/** @param {Card} card */
function nameOf({ environment }) {
  return OWN[environment ?? ""] ?? environment ?? "";
}
