"""A scorer's values of held-back decisions: candidates of decision groups, or siblings in labelled trees."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from qguide.qnet.records import TreeRow
from qguide.qnet.types import Scorer, ScoreRequest
from qguide.training.algorithms.choice_quality import PlacedChoice, ScoredChoice
from qguide.training.algorithms.tree import Tree
from qguide.training.data.decision_groups import GroupDecision, GroupLabels, decisions_of
from qguide.training.data.records import LabelledTree
from qguide.training.data.siblings import sibling_choices
from qguide.training.trajectory import reply_key, step_messages


def score_groups(scorer: Scorer, rows: Sequence[TreeRow]) -> list[list[list[float]]]:
    """Values of every candidate of every decision of every row.

    All episodes are scored step by step in parallel, so that each step is one batch and a scorer
    with a prefix cache reads each history once. A single candidate is not scored: it gets 0.
    """
    made = [decisions_of(row) for row in rows]
    observed = scorer.reads_observation
    scores: list[list[list[float]]] = [[] for _ in rows]
    for step in range(max(map(len, made))):
        alive = [i for i, own in enumerate(made) if step < len(own)]
        choices = [i for i in alive if len(made[i][step].candidates) > 1]
        requests = [_request(made[i][step], observed=observed) for i in choices]
        values = dict(zip(choices, scorer.score(requests), strict=True)) if requests else {}
        for i in alive:
            scores[i].append(list(values[i].q_values) if i in values else [0.0])
    return scores


def choices_by(scorer: Scorer, rows: Sequence[TreeRow], labels: GroupLabels) -> list[ScoredChoice]:
    """Every decision between several candidates, with a scorer's values and the candidates' labels."""
    return [
        replace(decision.choice(decision.labels(labels), task=row.task_id), q_values=values)
        for row, scores in zip(rows, score_groups(scorer, rows), strict=True)
        for decision, values in zip(decisions_of(row), scores, strict=True)
        if len(decision.candidates) > 1
    ]


def sibling_choices_by(scorer: Scorer, trees: Iterable[LabelledTree]) -> list[ScoredChoice]:
    """The same of every state in trees with several labelled actions."""
    return [choice for tree in trees for choice in _siblings(scorer, tree)]


def _siblings(scorer: Scorer, labelled: LabelledTree) -> list[ScoredChoice]:
    tree, firsts, places = labelled.tree, dict[tuple[int, str], int](), list[tuple[int, int]]()
    for node_id in labelled.labels:
        node = tree.node(node_id)
        places.append((node_id, firsts.setdefault((node.parent, reply_key(node.step.message)), node_id)))
    placed = sibling_choices(labelled, places)
    requests = [_sibling_request(tree, one, observed=scorer.reads_observation) for one in placed]
    results = scorer.score(requests) if requests else []
    return [replace(one.choice, q_values=result.q_values) for one, result in zip(placed, results, strict=True)]


def _sibling_request(tree: Tree, siblings: PlacedChoice, *, observed: bool) -> ScoreRequest:
    """Actions of one state, by their nodes, with what each was answered if the Q model reads that."""
    nodes = [tree.node(place) for place in siblings.places]
    return ScoreRequest(
        tree.history(nodes[0].parent),
        tuple(node.step.message for node in nodes),
        observations=tuple(step_messages(node.step)[1:] for node in nodes) if observed else (),
        counts=tuple(siblings.choice.draws),
    )


def _request(decision: GroupDecision, *, observed: bool) -> ScoreRequest:
    """A decision's candidates, with what each was answered if the Q model reads that."""
    candidates = decision.candidates
    answers = tuple(c.answer for c in candidates)
    return ScoreRequest(
        decision.history,
        tuple(candidate.message for candidate in candidates),
        observations=answers if observed else (),
        counts=tuple(candidate.count for candidate in candidates),
        logprobs=tuple(candidate.logprob for candidate in candidates),
    )
