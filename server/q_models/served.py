"""One version of a served Q model: its names, and how long requests keep it open."""

from abc import ABC, abstractmethod
from typing import Literal

from qnet.judging.settings import JudgeSettings
from qnet.models.manifest import Manifest
from qnet.types import AsyncScorer, History
from server.q_models.aliases import join

Source = Literal["embedded", "scripted", "checkpoint", "vllm", "judge", "upstream"]


class ServedQModel(ABC):
    """One version of a Q model; owned by the event loop.

    Attributes:
        id: `name@version`.
        manifest: None for a fake and for a judge.
        context: most tokens of history and candidate; None if unknown.
        judge: how a judge is asked; None for any other Q model.
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
    ) -> None:
        self.id = join(name, version)
        self.name = name
        self.version = version
        self.source = source
        self.manifest = manifest
        self.judge = judge
        self.context: int | None = None
        self._holders = 0
        self._retired = False

    @property
    def healthy(self) -> bool:
        """True while it can answer."""
        return True

    async def count_tokens(self, history: History) -> int | None:
        """Tokens of a history as the Q model reads it; None if it has no tokenizer here."""
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
