"""One version of a served Q model: its names, and how long requests keep it open."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from qguide.qnet.decision.history_window import RequestSize
from qguide.qnet.device.read_ahead import ReadAhead
from qguide.qnet.features.domain import Domain
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.types import AsyncScorer, History, ScoreRequest
from qguide.server.q_models.aliases import join
from qguide.server.settings.settings import EMBEDDED

Source = Literal["embedded", "scripted", "checkpoint", "vllm", "judge", "upstream", "rules", "none"]


def source_of(setting: str) -> Source:
    """Source of a model that a setting names as "embedded" or by its folder or hub name."""
    return EMBEDDED if setting == EMBEDDED else "checkpoint"


class ServedQModel(ABC):
    """One version of a Q model; owned by the event loop.

    Attributes:
        id: `name@version`.
        manifest: None for a fake and for a judge.
        context: most tokens of history and candidate; None if unknown.
        judge: how a judge is asked; None for any other Q model.
        domain: the states that it was trained on; None where its checkpoint says nothing of them.
        ranks: its values mean nothing beyond the candidates of their own step.
        refusal: why `none` scores nothing; "" for a Q model.
        scorer: scores requests.
        shadow_scorer: scores requests a second time, without charging anyone.
    """

    scorer: AsyncScorer
    shadow_scorer: AsyncScorer

    def __init__(
        self,
        name: str,
        version: str,
        source: Source,
        *,
        manifest: Manifest | None = None,
        judge: JudgeSettings | None = None,
        domain: Domain | None = None,
    ) -> None:
        self.id = join(name, version)
        self.name = name
        self.version = version
        self.source = source
        self.manifest = manifest
        self.judge = judge
        self.domain = domain
        self.context: int | None = None
        self.ranks = judge is not None and judge.mode == "rank"
        self.refusal = ""
        self._holders = 0
        self._retired = False

    @property
    def healthy(self) -> bool:
        """True while it can answer."""
        return True

    @property
    def waiting(self) -> frozenset[int]:
        """Requests that wait for a thread of its own; none if it has none."""
        return frozenset()

    @property
    def cached_bytes(self) -> int:
        """Keys and values that it keeps between requests."""
        return 0

    async def count_tokens(self, history: History) -> int | None:
        """Tokens of a history as the Q model reads it; None if it has no tokenizer here."""
        return None

    def read_ahead(self, request: ScoreRequest) -> ReadAhead | None:
        """Begin to read a history before its candidates exist; None if it cannot."""
        return None

    async def measure(self, request: ScoreRequest) -> RequestSize | None:
        """Number of tokens of a request as the Q model reads it; None if it cannot be told here."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Stop what it runs by itself, even if requests still wait; for shutdown."""

    def hold(self) -> None:
        """Keep the version open until `release`."""
        self._holders += 1

    def release(self) -> None:
        """Release the version; the last release closes a retired version."""
        self._holders -= 1
        self._close_if_unused()

    def retire(self) -> None:
        """Close the version as soon as no request holds it."""
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and not self._holders:
            self._close_retired()

    @abstractmethod
    def _close_retired(self) -> None:
        """Free what the version has; no request holds it any more."""


@dataclass(frozen=True, slots=True)
class QModelLease:
    """The version of a Q model that a request holds until its end.

    Attributes:
        scorer: scores requests, with a shadow if there is one.
        shadow: `name@version` of the shadow; "" for none.
    """

    model: ServedQModel
    scorer: AsyncScorer
    shadow: str = ""

    @property
    def id(self) -> str:
        """`name@version`."""
        return self.model.id

    @property
    def name(self) -> str:
        """The name without the version."""
        return self.model.name

    @property
    def version(self) -> str:
        """The version alone."""
        return self.model.version

    @property
    def judge(self) -> JudgeSettings | None:
        """Settings of a judge; None for any other Q model."""
        return self.model.judge

    @property
    def refusal(self) -> str:
        """Reason why it scores nothing; "" for a Q model."""
        return self.model.refusal

    @property
    def ranks(self) -> bool:
        """True if its values mean nothing beyond the candidates of their own step."""
        return self.model.ranks
