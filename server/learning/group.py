"""One group of learning: its ledger, the state that follows from it, and what is decided.

Every decision is made with the ledger locked, after all that others wrote was read. So two replicas never decide the
same thing, and a restart goes on where the last line ends.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final, Literal

import structlog
from filelock import FileLock, Timeout

from qguide.qnet.errors import InvalidRequestError
from qguide.server.learning import phase_changes
from qguide.server.learning.ledger import Ledger
from qguide.server.learning.lines import (
    AnyLine,
    EpisodeLine,
    FitLine,
    Mode,
    ModeLine,
    PhaseLine,
    SilentLine,
    SpentLine,
    StateLine,
)
from qguide.server.learning.progress import Progress, progress_of, state_in
from qguide.server.settings.learning import Rules

GROUP_PATTERN: Final = r"^(_|\+?[A-Za-z0-9][A-Za-z0-9._-]{0,63})$"
"""Names of groups, which are names of folders, too."""
Order = Literal["pin", "forbid", "promote", "roll_back", "auto"]
_MOST_PENDING: Final = 10_000
_MOST_LINES: Final = 5_000  # lines of a ledger that is replaced by their state: a second's reading at a start
_MODES: Final[dict[Order, Mode]] = {"pin": "pinned", "forbid": "forbidden", "auto": "auto"}
_log = structlog.get_logger(__name__)


class Group:
    """Learning of one key, or of keys that the operator groups; its methods wait on the disk."""

    def __init__(self, name: str, folder: Path, rules: Rules, *, clock: Callable[[], float] = time.time) -> None:
        self.name = name  # of the key; "+name" of a group, "_" of a server without keys
        self.folder = folder
        self.progress = Progress(rules)  # the state; read it on another thread only for what it was a moment ago
        self._rules = rules
        self._clock = clock
        self._lock = Lock()
        self._ledger = Ledger(folder)
        # changes that this process wrote, for whoever tells of them
        self.own: deque[PhaseLine] = deque(maxlen=_MOST_PENDING)
        self.pending: deque[EpisodeLine | SpentLine] = deque(maxlen=_MOST_PENDING)
        self._generation = 0
        self._most_lines = _MOST_LINES
        self.follow()

    def follow(self) -> list[PhaseLine]:
        """Read what others wrote, and write what could not be written; returns the changes."""
        with self._lock:
            return self._settle() if self.pending else self._catch_up()

    def end(self, line: EpisodeLine | SpentLine) -> list[PhaseLine]:
        """Count an episode, once, or what was spent; if the disk is full it is counted later."""
        with self._lock:
            self.pending.append(line)
            return self._settle()

    def silent(self, lines: Sequence[SilentLine]) -> list[PhaseLine]:
        """Note episodes that end as unknown, each once."""
        with self._lock, self._ledger.locked():
            found = self._catch_up()
            for line in lines:
                if not self.progress.counted(line.episode):
                    self._write(line)
            return found

    def fitted(self, line: FitLine) -> list[PhaseLine]:
        """Note the end of a fit."""
        with self._lock, self._ledger.locked():
            found = self._catch_up()
            self._write(line)
            return [*found, *self._decide()]

    def outdated(self, version: int, reason: str) -> list[PhaseLine]:
        """Collect again if a version that no server of this release can load guides or is tried."""
        with self._lock, self._ledger.locked():
            found = self._catch_up()
            if self.progress.phase == "collecting" or self.progress.version != version:
                return found
            change = phase_changes.back(self.progress, f"rolled back: {reason}")
            return [*found, self._change(change), *self._decide()]

    def order(self, order: Order) -> list[PhaseLine]:
        """Obey the operator."""
        with self._lock, self._ledger.locked():
            found = self._catch_up()
            wanted = self._ordered(order)
            if mode := _MODES.get(order):
                self._write(ModeLine(mode=mode, at=self._clock()))
            return [*found, *map(self._change, wanted), *self._decide()]

    @contextmanager
    def learner(self) -> Iterator[bool]:
        """Be the only one who fits; False if another process does."""
        try:
            held = FileLock(self.folder / "learner.lock", mode=0o600).acquire(blocking=False)
        except Timeout:
            yield False
            return
        with held:
            yield True

    def _settle(self) -> list[PhaseLine]:
        try:
            with self._ledger.locked():
                found = self._catch_up()
                while self.pending:
                    line = self.pending[0]
                    known = isinstance(line, EpisodeLine) and self.progress.has(line)
                    if not known:
                        self._write(line)
                    # Only after it was written: what a full disk refuses is written later, in its order.
                    self.pending.popleft()
                decided = [*found, *self._decide()]
                self._compact()
                return decided
        except OSError as error:
            reason = error.strerror or type(error).__name__
            _log.error("learning_not_written", group=self.name, reason=reason)
            return []

    def _catch_up(self) -> list[PhaseLine]:
        if self._ledger.restarted:
            self._ledger.rewind()
            self.progress, self._generation = Progress(self._rules), 0
        found = []
        for line in self._ledger.new():
            if isinstance(line, StateLine):
                self._generation = line.generation
                try:
                    self.progress = progress_of(line.state, self._rules)
                except ValueError:  # its message may be long
                    _log.error("learning_state_unreadable", group=self.name, generation=line.generation)
            else:
                self.progress.apply(line)
            if isinstance(line, PhaseLine):
                found.append(line)
        return found

    def _compact(self) -> None:
        """Replace a long ledger by the state that its lines make; on a full disk later."""
        if self._ledger.lines <= self._most_lines:
            return
        line = StateLine(generation=self._generation + 1, state=state_in(self.progress))
        try:
            self._ledger.replace(line)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            _log.error("ledger_not_replaced", group=self.name, reason=reason)
            self._most_lines = self._ledger.lines + _MOST_LINES // 10
            return
        self._generation, self._most_lines = line.generation, _MOST_LINES

    def _decide(self) -> list[PhaseLine]:
        decided = []
        # One change may make the next one due.
        while change := phase_changes.due(self.progress):
            decided.append(self._change(change))
        return decided

    def _change(self, change: PhaseLine) -> PhaseLine:
        line = change.model_copy(update={"at": self._clock()})
        self._write(line)
        self.own.append(line)
        return line

    def _write(self, line: AnyLine) -> None:
        # Written first: what is not on the disk has not happened, to this process either.
        self._ledger.append(line)
        self.progress.apply(line)

    def _ordered(self, order: Order) -> list[PhaseLine]:
        now = self.progress
        back = phase_changes.back(now, f"rolled back by the operator ({order})")
        match order:
            case "forbid" if now.phase != "collecting":
                return [back]
            case "roll_back":
                if now.phase == "collecting":
                    raise InvalidRequestError(
                        "nothing guides in the phase 'collecting', so there is nothing to roll back; "
                        "the order 'forbid' keeps it so"
                    )
                return [back]
            case "promote":
                return self._promoted()
        return []

    def _promoted(self) -> list[PhaseLine]:
        now = self.progress
        if now.mode == "forbidden":
            raise InvalidRequestError("nothing can be promoted in the mode 'forbidden'; give the order 'auto' first")
        newest = now.licensed.version if now.licensed else now.version
        if newest is None or (now.phase == "guiding" and newest == now.version):
            guiding = now.phase == "guiding"
            said = f"version {newest} guides already" if guiding else "no fit since the last change has a licence"
            raise InvalidRequestError(f"nothing can be promoted: {said}; see GET /v1/learning")
        if now.phase != "collecting":
            return [phase_changes.promoted(now, newest, "promoted by the operator")]
        began = phase_changes.begun(now, newest, "begun by the operator")
        guides = phase_changes.promoted(now, newest, "promoted by the operator")
        return [began, guides.model_copy(update={"trial": began.trial})]
