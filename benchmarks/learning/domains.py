"""Domains of Q models beside each other's states: what is outside, and what the check costs.

    python -m benchmarks.learning.domains --recorded alfworld=runs/held_out --model alfworld=embedded

A Q model of features is learned from each environment's recorded tasks. Its own states are those of
new tasks: as the agent plays them, by another policy (the posterior that it guides), and with the
task in other words. All others' states are foreign. A named recording brings its own tasks: a fifth
of them is kept aside, all where a `--model` that was trained on others is named.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Annotated, Final

import numpy as np
import typer
from fastapi.testclient import TestClient

from benchmarks.strangers.catalogue import STRANGERS, Named, Stranger
from benchmarks.strangers.features import Features, LicensedScorer
from benchmarks.strangers.protocol import Fitted, Measurement
from qguide.qnet.chat_messages import plain_message
from qguide.qnet.decision.perturbation import find_task
from qguide.qnet.features.domain import AnyDomain
from qguide.qnet.features.hashing import Hasher
from qguide.qnet.models.ensemble import load_domain
from qguide.qnet.models.feature_q import save_feature_q
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.types import History, Message, TaskMarker
from qguide.server.app import create_app
from qguide.server.observability.logs import configure_logging
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings
from qguide.training.guidance_report.calibration import weighted_auc
from qguide.training.learning.episodes import LearnedEpisode, episode_of
from qguide.training.learning.learner import learn
from qguide.training.learning.sources import read_learnable
from qguide.training.licence.domain import fit_domain, outside_of
from qguide.training.recordings.fields import Fields

app = typer.Typer()

State = tuple[str, History]
_OWN: Final = "own"
_VARIANTS: Final = ("another policy", "by synonyms", "politely")
_FOLDS: Final = 5
_TIMED: Final = 200
_CANDIDATES: Final = 5
_MARKERS: Final = (TaskMarker("Your task is to:"),)
_SYNONYMS: Final = {
    "bring": "carry",
    "to": "over to",
    "the": "our",
    "put": "place",
    "clean": "spotless",
    "heat": "warm up",
    "cool": "chill",
    "find": "look for",
    "examine": "inspect",
    "some": "any",
    "two": "a pair of",
    "make": "produce",
    "what": "tell me what",
    "which": "tell me which",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of task.

    Attributes:
        folder: checkpoint of its Q model, or "embedded".
        own: the agent's states of tasks that were kept aside.
        variants: the same by another policy, or with the task in other words.
        replies: of the recorded agent, which are scored where the check is timed.
    """

    name: str
    folder: str
    domain: AnyDomain
    own: Sequence[State]
    variants: Mapping[str, Sequence[State]]
    replies: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """States beside a Q model's domain.

    Attributes:
        states_of: a kind of task, "own", or a variant of the own.
        auc: share of pairs of such a state and one of its own of which it is the farther, ties half.
    """

    q_model: str
    states_of: str
    states: int
    outside: float
    auc: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The check of a state beside the step of `/v1/score` that it is a part of, in CPU milliseconds."""

    q_model: str
    states: int
    check_ms: float
    step_ms: float

    @property
    def share(self) -> float:
        """Share of the step."""
        return self.check_ms / self.step_ms


def by_synonyms(task: str) -> str:
    """A task with other words where there are such."""
    return re.sub(r"\w+", lambda word: _SYNONYMS.get(word[0].lower(), word[0]), task)


def politely(task: str) -> str:
    """A task with a courtesy before and behind it."""
    return f"Could you please help me with this? {task} Many thanks!"


def reworded(state: State, reword: Callable[[str], str]) -> State:
    """A state whose task is put in other words."""
    name, history = state
    place = find_task(history, markers=_MARKERS)
    return name, place.reworded(history, reword(place.text(history)))


def stranger_kind(stranger: Stranger, episodes: int, new: int, output: Path) -> Kind:
    """An environment with a Q model of its recorded tasks, which is written to `output`."""
    measured = Measurement(stranger, new_episodes=new)
    folder = output / stranger.name
    scorer = _learn(folder, [episode_of(row) for row in measured.record(0, episodes)])
    own = [episode_of(row) for row in measured.record_new("sample", new)]
    guided = [episode_of(row) for row in measured.record_new("posterior", new, Fitted(scorer))]
    return _kind(stranger.name, folder, own, guided)


def recorded_kind(name: str, source: Path, others: Path | None, model: str | None, output: Path) -> Kind:
    """A kind of task by its recording.

    Args:
        name: what it is called.
        source: the recording.
        others: recording of another policy; None if there is none.
        model: checkpoint that was trained on other tasks; None learns one of features.
        output: folder of the Q model that is learned.
    """
    episodes = _read(source)
    tasks = list(dict.fromkeys(one.task for one in episodes))
    kept = set(tasks if model else tasks[::_FOLDS])
    folder = Path(model or output / name)
    if not model:
        _learn(folder, [one for one in episodes if one.task not in kept])
    own = [one for one in episodes if one.task in kept]
    return _kind(name, folder, own, [one for one in _read(others) if one.task in kept] if others else [])


def _read(source: Path) -> list[LearnedEpisode]:
    return read_learnable([source], Fields(default_reward=0.0), skip_bad=False)


def _learn(folder: Path, episodes: Sequence[LearnedEpisode]) -> LicensedScorer:
    """Write a Q model of features with its domain."""
    learned = learn(episodes, Features.options, Hasher(b"strangers"))
    manifest = Manifest(kind="features", name=folder.name, target="td-advantage")
    save_feature_q(folder, learned.model, manifest, domain=fit_domain(_states(episodes)))
    return LicensedScorer(learned)


def _kind(name: str, folder: Path, own: Sequence[LearnedEpisode], others: Sequence[LearnedEpisode]) -> Kind:
    domain = load_domain(embedded_path("qnet") if str(folder) == EMBEDDED else folder)
    if domain is None:
        raise typer.BadParameter(f"--model {name}={folder} has no domain; `qguide domain` gives it one")
    states = _states(own)
    said = [[reworded(state, how) for state in states] for how in (by_synonyms, politely)]
    variants = dict(zip(_VARIANTS, (_states(others), *said), strict=True))
    replies = tuple(dict.fromkeys(action for one in own for action in one.actions))
    return Kind(name, str(folder), domain, states, variants, replies)


def _states(episodes: Sequence[LearnedEpisode]) -> list[State]:
    return [(one.task, state) for one in episodes for state in one.states]


def beside(kinds: Sequence[Kind]) -> Iterator[Beside]:
    """The states of each kind of task beside the domain of each Q model."""
    for kind in kinds:
        own = outside_of(kind.domain, kind.own).distances
        foreign = {other.name: other.own for other in kinds if other is not kind}
        for name, states in {_OWN: kind.own, **kind.variants, **foreign}.items():
            if states:
                found = outside_of(kind.domain, states)
                far = np.array([1.0] * len(states) + [0.0] * len(own))
                auc = weighted_auc(np.array([*found.distances, *own]), far, np.ones(len(far)))
                yield Beside(kind.name, name, len(states), found.share, float(auc or 0.0))


def costs(kinds: Sequence[Kind]) -> Iterator[Cost]:
    """The check, timed on states in their order, beside `/v1/score` of a server in this process."""
    configure_logging("ERROR")
    settings = Settings(policy=SCRIPTED, q_models={kind.name: kind.folder for kind in kinds}, unlicensed=True)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        for kind in kinds:
            checked, stepped = 0.0, 0.0
            states = kind.own[:_TIMED]
            candidates = [plain_message(reply) for reply in kind.replies[:_CANDIDATES]]
            for _, history in states:
                messages = [plain_message(message) for message in history]
                body = {"q_model": kind.name, "messages": messages, "candidates": candidates}
                start = process_time()
                kind.domain.distance(history)
                checked += process_time() - start
                start = process_time()
                client.post("/v1/score", json=body | {"out_of_domain": "guide"}).raise_for_status()
                stepped += process_time() - start
            yield Cost(kind.name, len(states), 1e3 * checked / len(states), 1e3 * (checked + stepped) / len(states))


def markdown(found: Sequence[Beside], costed: Sequence[Cost]) -> str:
    """One row for each Q model."""
    columns = ("Q model of", "least AUC", "foreign inside", "own outside", *_VARIANTS, "check, CPU ms", "of a step")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for cost in costed:
        by_name = {one.states_of: one for one in found if one.q_model == cost.q_model}
        own = [_outside(by_name.pop(name, None)) for name in (_OWN, *_VARIANTS)]
        foreign = list(by_name.values())
        inside = sum(round(one.states * (1 - one.outside)) for one in foreign)
        least = min((one.auc for one in foreign), default=float("nan"))
        shares = f"{inside:,} of {sum(one.states for one in foreign):,} | {' | '.join(own)}"
        lines.append(f"| {cost.q_model} | {least:.4f} | {shares} | {cost.check_ms:.3f} | {cost.share:.1%} |")
    return "\n".join(lines)


def _outside(found: Beside | None) -> str:
    return f"{found.outside:.2%} of {found.states:,}" if found else ""


def _named(pairs: Sequence[str]) -> dict[str, str]:
    """Values by name; other text is refused."""
    for pair in pairs:
        if not all(pair.partition("=")):
            raise typer.BadParameter(f"{pair!r} is not NAME=PATH")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@app.command()
def main(
    environments: Named = None,
    recorded: Annotated[list[str] | None, typer.Option(help="NAME=PATH of recordings of another kind of task.")] = None,
    others: Annotated[list[str] | None, typer.Option(help="NAME=PATH of the same by another policy.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER of a Q model that is not learned here.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Recorded episodes of an environment.")] = 200,
    new: Annotated[int, typer.Option(min=1, help="Least number of new ones.")] = 144,
    output: Annotated[Path, typer.Option(help="Folder of Q models and results.")] = Path("runs/domains"),
) -> None:
    """Learn, and lay the states of every kind of task beside every domain."""
    sources, policies, models = (_named(pairs or ()) for pairs in (recorded, others, model))
    if unknown := (policies.keys() | models.keys()) - sources.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} has no --recorded; name its recording")
    kinds = [stranger_kind(one, episodes, new, output) for one in environments or STRANGERS.values()]
    for name, source in sources.items():
        policy = Path(policies[name]) if name in policies else None
        kinds.append(recorded_kind(name, Path(source), policy, models.get(name), output))
    found, costed = list(beside(kinds)), list(costs(kinds))
    rows = {"beside": [asdict(one) for one in found], "costs": [asdict(one) for one in costed]}
    (output / "domains.json").write_text(json.dumps(rows, indent=1) + "\n")
    (output / "domains.md").write_text(markdown(found, costed) + "\n")
    typer.echo(markdown(found, costed))


if __name__ == "__main__":
    app()
