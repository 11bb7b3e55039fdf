"""Learning while serving: how each episode is played, and what follows from its outcome.

A step reads only what is in memory. Ledgers are written and followed on threads, fits run in child
processes, and a version is loaded before any episode is guided by it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final, get_args

import structlog

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.support.extras import REPORT, install
from qguide.server.context.request_context import calling_key, owner_of, scoped_episode_id
from qguide.server.episodes.state import Arm, Episode
from qguide.server.learning.fitting import FitLimits, Fitter, checkpoint_of
from qguide.server.learning.group import Group, Order
from qguide.server.learning.lines import EpisodeLine, Phase, PhaseLine
from qguide.server.learning.rules import Rules
from qguide.server.learning.state import LearningState, state_of
from qguide.server.q_models.build import Models, open_q_model
from qguide.server.q_models.served import ServedQModel
from qguide.server.settings.settings import Settings

LEARNING: Final = "learning"
"""Name of the folder, in that of the recorded episodes."""
KEYLESS: Final = "_"
_NAME: Final = "learned"
_FOLLOW_S: Final = 1.0
_AFTER_FAILURE_S: Final = 60.0
_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Play:
    """Part of a step in learning.

    Attributes:
        arm: of its episode; None if it has none.
        q_model: the learned version that guides it; None: it is played as without learning.
        explore: seed of a random choice where no Q model chooses; None: nothing is random.
    """

    arm: Arm | None = None
    q_model: ServedQModel | None = None
    explore: int | None = None


@dataclass(slots=True)
class _Seat:
    """A group, and what the steps of its episodes read.

    Attributes:
        share: of new episodes that are guided.
        episodes: ends of episodes so far.
        version: of `model`; None without one.
        refused: a version that could not be loaded.
        loads_again_s: time of the loop before which that is not tried again.
        fits_again_s: time of the loop before which no fit begins, after one could not be noted.
    """

    group: Group
    phase: Phase = "collecting"
    trial: int = 0
    share: float = 0.0
    episodes: int = 0
    version: int | None = None
    model: ServedQModel | None = None
    refused: int | None = None
    loads_again_s: float = 0.0
    fits_again_s: float = 0.0
    fitting: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Learning:
    """Learning of all keys; owned by the event loop.

    Args:
        folder: of the recorded episodes; each group has a folder in its `learning`.
    """

    def __init__(self, settings: Settings, models: Models, folder: Path) -> None:
        self._settings = settings
        self._models = models
        self._folder = folder / LEARNING
        self.rules = Rules(
            every=settings.learn_every,
            exploration=settings.learn_exploration,
            control=settings.learn_control,
            alpha=settings.learn_alpha,
        )
        limits = FitLimits(settings.learn_cpu_s, settings.learn_memory_mb * 1024**2)
        self._fitter = Fitter(folder, limits)
        self._one_fit = asyncio.Semaphore(1)
        self._opening = asyncio.Lock()
        self._seats: dict[str, _Seat] = {}

    def group_of(self, key: str | None) -> str:
        """Name of the group that a key's episodes teach."""
        if not key:
            return KEYLESS
        group = self._settings.learn_groups.get(key)
        return f"+{group}" if group else key

    async def play(
        self, episode_id: str | None, episode: Episode | None, *, prompt: Callable[[], str]
    ) -> Play:
        """The part of the next step of the caller's episode.

        Args:
            episode: as it is before the step; None if it is new.
            prompt: hash of the step's system prompt and tools.
        """
        if episode_id is None:
            return Play()
        seat = await self._seat(self.group_of(calling_key()))
        place = scoped_episode_id(episode_id)
        begun = episode is not None and episode.steps > 0
        arm = episode.arm if episode and begun else _arm(seat, place, prompt())
        if arm is None:
            return Play()
        if arm.guided:
            return Play(arm, seat.model)
        step = episode.steps if episode else 0
        seed = _hash("explore", place, seat.episodes, step)
        explores = seat.phase == "collecting" and _point(seed) < self.rules.exploration
        return Play(
            arm, explore=_hash("candidate", place, seat.episodes, step) if explores else None
        )

    async def ended(self, place: str, episode: Episode) -> None:
        """Count a closed episode, once, and do what follows from it."""
        assert episode.outcome is not None
        line = EpisodeLine(
            episode=episode.uid,
            outcome=min(max(episode.outcome.reward, 0.0), 1.0),
            arm=episode.arm,
            recorded=episode.recorded,
            completion_tokens=episode.completion_tokens,
            outside=min(episode.outside / max(episode.steps, 1), 1.0),
        )
        seat = await self._seat(self.group_of(owner_of(place)))
        await self._change(seat, lambda: seat.group.end(line))

    async def order(self, group: str, order: Order) -> LearningState:
        """Obey the operator.

        Raises:
            InvalidRequestError: there is nothing to promote or to roll back.
        """
        seat = await self._seat(group)
        await self._change(seat, lambda: seat.group.order(order))
        return await self.state(group)

    async def state(self, group: str) -> LearningState:
        """The state of a group."""
        seat = await self._seat(group)
        async with seat.lock:
            return state_of(group, seat.group.progress, self.rules, share=seat.share)

    async def follow(self) -> None:
        """Follow what other replicas write, and fit where a fit is due."""
        for seat in list(self._seats.values()):
            await self._change(seat, seat.group.follow)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Go on where an earlier process ended, and follow within the block."""
        for folder in await asyncio.to_thread(_folders, self._folder):
            await self._seat(folder.name)
        following = asyncio.create_task(self._following())
        try:
            yield
        finally:
            following.cancel()
            self._fitter.stop()
            fits = [seat.fitting for seat in self._seats.values() if seat.fitting]
            await asyncio.gather(following, *fits, return_exceptions=True)

    async def _following(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self.follow()
            except Exception:
                _log.exception("learning_not_followed")

    async def _seat(self, name: str) -> _Seat:
        seat = self._seats.get(name)
        if seat is not None:
            return seat
        async with self._opening:
            if name not in self._seats:
                group = await asyncio.to_thread(Group, name, self._folder / name, self.rules)
                seat = _Seat(group)
                async with seat.lock:
                    await self._publish(seat, ())
                self._seats[name] = seat
        return self._seats[name]

    async def _change(self, seat: _Seat, change: Callable[[], list[PhaseLine]]) -> None:
        async with seat.lock:
            await self._publish(seat, await asyncio.to_thread(change))
        self._fit_if_due(seat)

    async def _publish(self, seat: _Seat, changes: Sequence[PhaseLine]) -> None:
        """Let steps see the state; the version that guides is loaded before."""
        progress = seat.group.progress
        waits = asyncio.get_running_loop().time() < seat.loads_again_s
        if progress.version != seat.version and not (waits and progress.version == seat.refused):
            await self._load(seat, progress.version)
        guides = seat.model is not None
        seat.phase, seat.trial = progress.phase, progress.trial
        seat.share = progress.share if guides else 0.0
        seat.episodes = progress.episodes.count
        for change in changes:
            _log.info(
                "learning_phase",
                group=seat.group.name,
                phase=change.phase,
                trial=change.trial,
                reason=change.reason,
                version=progress.version,
            )
        interval = progress.interval
        self._models.runtime.metrics.show_learning(
            seat.group.name,
            phase=progress.phase,
            phases=_PHASES,
            episodes={"guided": progress.guided.count, "unguided": progress.control.count},
            difference={"low": interval.low, "estimate": interval.estimate, "high": interval.high},
        )

    async def _load(self, seat: _Seat, version: int | None) -> None:
        """Serve a version in place of the one before; requests that hold that end with it.

        One that cannot be loaded, such as from a shared folder that does not show it yet, is tried
        again later; until then nothing guides.
        """
        former, model = seat.model, None
        if version is not None:
            try:
                model = await asyncio.to_thread(
                    open_q_model,
                    self._settings,
                    self._models.runtime,
                    str(checkpoint_of(seat.group.folder, version)),
                    name=_NAME,
                    version=_label(seat.group.name, version),
                )
            except (OSError, QGuideError) as error:
                _log.error(
                    "learned_not_loaded", group=seat.group.name, version=version, reason=str(error)
                )
                seat.refused = version
                seat.loads_again_s = asyncio.get_running_loop().time() + _AFTER_FAILURE_S
        seat.model, seat.version = model, version if model else None
        if former is not None:
            former.retire()

    def _fit_if_due(self, seat: _Seat) -> None:
        running = seat.fitting is not None and not seat.fitting.done()
        waits = asyncio.get_running_loop().time() < seat.fits_again_s
        if seat.group.progress.fit_due and not running and not waits:
            # Not in the context of the request, which its log lines would name.
            seat.fitting = asyncio.create_task(self._fit(seat), context=Context())

    async def _fit(self, seat: _Seat) -> None:
        try:
            async with self._one_fit:
                changes = await asyncio.to_thread(self._learn, seat.group)
            async with seat.lock:
                await self._publish(seat, changes)
        except Exception:  # whatever it is, the next fit begins later, not at once
            _log.exception("fit_not_noted", group=seat.group.name)
            seat.fits_again_s = asyncio.get_running_loop().time() + _AFTER_FAILURE_S

    def _learn(self, group: Group) -> list[PhaseLine]:
        """Fit if it is still due and nobody else does; on a thread."""
        with group.learner() as mine:
            changes = group.follow() if mine else []
            progress = group.progress
            if not mine or not progress.fit_due:
                return changes
            line = self._fitter.fit(group.folder, progress)
            if line is None:
                return changes
            changes += group.fitted(line)
            licensed = group.progress.licensed
            self._fitter.forget_old(group.folder, keep=licensed.version if licensed else None)
        outcome = "licensed" if line.licensed else "failed" if line.failed else "unlicensed"
        self._models.runtime.metrics.learning_fits.labels(group.name, outcome).inc()
        _log.info(
            "learning_fit",
            group=group.name,
            version=line.version,
            episodes=line.episodes,
            outcome=outcome,
            reason=line.reason,
        )
        return changes


def check_learning(settings: Settings) -> None:
    """Refuse to start where nothing could be learned.

    Raises:
        ConfigError: a fit cannot run here, or the folder of episodes cannot be written.
    """
    if find_spec("scipy") is None:
        raise ConfigError(f"learning needs scipy, which is not installed; {install(REPORT)}")
    folder = settings.episodes_folder
    try:
        if folder is not None:
            (folder / LEARNING).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"learning records episodes in {folder}, which cannot be written ({error.strerror}); "
            "name another folder in QGUIDE_EPISODES_DIR"
        ) from error


def build_learning(settings: Settings, models: Models) -> Learning | None:
    """The learning of a server; None if it does not learn."""
    folder = settings.episodes_folder
    return Learning(settings, models, folder) if settings.learn and folder else None


def _arm(seat: _Seat, place: str, prompt: str) -> Arm:
    """The arm of a new episode.

    By a hash with the number of episodes in it, because agents whose ids come again play the same
    task by the same id. The episode keeps it from its first step on.
    """
    guided = _point(_hash("arm", place, seat.episodes, seat.trial)) < seat.share
    return Arm(trial=seat.trial, guided=guided, share=seat.share, prompt=prompt)


def _hash(*parts: object) -> int:
    # An id from JSON may hold a lone surrogate, which has no UTF-8 encoding.
    text = "\0".join(map(str, parts)).encode(errors="surrogatepass")
    return int.from_bytes(sha256(text).digest()[:8], "big")


def _point(hashed: int) -> float:
    return float(hashed / 2**64)


def _label(group: str, version: int) -> str:
    """Version of a learned Q model, as metrics and recordings tell it from other groups'."""
    if group == KEYLESS:
        return str(version)
    return f"{version}-{sha256(group.encode()).hexdigest()[:8]}"


def _folders(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return sorted(path for path in folder.iterdir() if path.is_dir())
    return []
