"""Learning while serving: how each episode is played, and what follows from its outcome.

A step reads only what is in memory. Ledgers are written and followed on threads, fits run in child processes, and a
version is loaded before any episode is guided by it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, get_args

import structlog

from qguide.qnet.errors import ConfigError, OutdatedFeaturesError, QGuideError
from qguide.qnet.packages import LEARN, require_extra
from qguide.qnet.policies.pool import split_draws
from qguide.server.episodes.state import ServedEpisode
from qguide.server.learning.fitting import Fitter
from qguide.server.learning.group import Group, Order
from qguide.server.learning.lines import EpisodeLine, Phase, PhaseLine, SilentLine, SpentLine
from qguide.server.learning.live_group import LearningStep, LiveGroup, Opening, arm_of, play_of
from qguide.server.learning.status_body import CurveState, LearningState, curve_of, extra_figures, state_of
from qguide.server.learning.tally import OpenEpisodes, Spent
from qguide.server.learning.webhook import build_webhook
from qguide.server.observability.request_context import current_account, owner_of, scoped_episode_id
from qguide.server.q_models.build import open_q_model
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import ServedQModel
from qguide.server.settings.learning import LEARNED
from qguide.server.settings.settings import Settings

LEARNING: Final = "learning"
"""Name of the folder, in that of the recorded episodes."""
_FOLLOW_S: Final = 1.0
_NOTE_S: Final = 10.0
_AFTER_FAILURE_S: Final = 60.0
_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
_log = structlog.get_logger(__name__)


class Learning:
    """Learning of all keys; owned by the event loop."""

    def __init__(self, models: Models, folder: Path) -> None:
        settings = models.runtime.settings
        self.group_of = settings.group_of
        self._models = models
        self._folder = folder / LEARNING
        self.rules = settings.learning_rules
        memory_bytes = settings.learn_memory_mb * 1024**2
        self._fitter = Fitter(folder, cpu_s=settings.learn_cpu_s, memory_bytes=memory_bytes)
        self._one_fit = asyncio.Semaphore(1)
        self._webhook = build_webhook(settings)
        self._open = OpenEpisodes(settings.learn_silence_s)
        self._opening = asyncio.Lock()
        self._groups: dict[str, LiveGroup] = {}
        self._notes_at_s = 0.0
        self._chance = Random()

    async def play(
        self, episode_id: str | None, episode: ServedEpisode | None, *, opening: Callable[[], Opening]
    ) -> LearningStep:
        """The part of the next step of the caller's episode."""
        live = await self._live(self.group_of(current_account().key))
        if episode_id is None:
            live.nameless += 1
            return LearningStep()
        place = scoped_episode_id(episode_id)
        spent = str(self.rules.budget) if live.over_budget(self.rules.budget) else ""
        if episode is not None and episode.steps > 0:
            arm = episode.arm
        else:  # an episode that could not be guided takes no part in a trial
            arm = None if spent else arm_of(live, place, opening())
        if arm is None:
            return LearningStep(spent=spent)
        play = play_of(live, place, episode, arm, exploration=self.rules.exploration)
        return LearningStep(arm, spent=spent) if play.group and spent else play

    async def split(self, names: Sequence[str], draws: int) -> dict[str, int]:
        """Candidates that each of several policies draws, by the outcomes of the caller's group."""
        live = await self._live(self.group_of(current_account().key))
        return split_draws(names, draws, known=live.policies, rng=self._chance)

    def spent(self, play: LearningStep, extra: Spent) -> None:
        """Note what a step of learning has had drawn beside the agent's own candidate."""
        if play.group:
            live = self._groups[play.group]
            live.pending = live.pending.plus(extra)

    async def asked(self, episode: ServedEpisode | None) -> ServedQModel | None:
        """The version that scores candidates of the caller's own; None: as without learning.

        An episode that began with a step that draws has its arm. Any other takes no part in a trial, and is scored by
        what guides.
        """
        live = await self._live(self.group_of(current_account().key))
        if episode is not None and episode.arm is not None:
            return live.guide(episode.arm)
        return live.model(live.version) if live.phase == "guiding" else None

    def heard(self, place: str, episode: ServedEpisode) -> None:
        """Note that an episode goes on, or ends."""
        self._open.heard(place, episode, now_s=asyncio.get_running_loop().time())

    async def ended(self, place: str, episode: ServedEpisode, why_not: str) -> None:
        """Count a closed episode, once, and do what follows from it; `why_not` is why it cannot be recorded."""
        assert episode.outcome is not None
        line = EpisodeLine(
            episode=episode.uid,
            outcome=min(max(episode.outcome.reward, 0.0), 1.0),
            cut=not 0 <= episode.outcome.reward <= 1,
            arm=episode.arm,
            recorded=episode.recorded,
            prompt_tokens=episode.prompt_tokens,
            completion_tokens=episode.completion_tokens,
            cost=episode.cost,
            outside=min(episode.outside / max(episode.steps, 1), 1.0),
            shadow=episode.shadow,
            policies=episode.policies,
        )
        live = await self._live(self.group_of(owner_of(place)))
        live.unrecorded = why_not or live.unrecorded
        await self._change(live, lambda: live.group.end(line))

    async def order(self, group: str, order: Order) -> LearningState:
        """Obey the operator."""
        live = await self._live(group)
        await self._change(live, lambda: live.group.order(order))
        return await self.state(group)

    async def state(self, group: str) -> LearningState:
        """The state of a group."""
        live = await self._live(group)
        async with live.lock:
            return state_of(
                group,
                live.group.progress,
                share=live.share,
                spent=live.spent,
                nameless=live.nameless,
                unrecorded=live.unrecorded,
            )

    async def curve(self, group: str) -> CurveState:
        """Success over the episodes of a group."""
        live = await self._live(group)
        async with live.lock:
            return curve_of(group, live.group.progress)

    async def names(self) -> list[str]:
        """Names of the groups that have learned here, on whichever replica."""
        return [folder.name for folder in await asyncio.to_thread(_folders, self._folder)]

    async def follow(self) -> None:
        """Follow what other replicas write, end silent episodes, and fit where a fit is due."""
        await self._end_silent()
        for live in list(self._groups.values()):
            await self._change(live, live.group.follow)
        if asyncio.get_running_loop().time() >= self._notes_at_s:
            await self._note_spent()

    async def _note_spent(self) -> None:
        """Write what was spent, so that replicas and later processes count it."""
        self._notes_at_s = asyncio.get_running_loop().time() + _NOTE_S
        for live in list(self._groups.values()):
            if live.pending.tokens and not live.group.pending:
                # Before the first wait: what is spent meanwhile is counted with the next line.
                live.noting, live.pending = live.pending, Spent()
                line = SpentLine(tokens=live.noting.tokens, cost=live.noting.cost, at=time.time())
                try:
                    await self._change(live, partial(live.group.end, line))
                finally:
                    live.noting = Spent()

    async def _end_silent(self) -> None:
        silent: dict[str, list[SilentLine]] = {}
        for place, line in self._open.ended(now_s=asyncio.get_running_loop().time()):
            silent.setdefault(self.group_of(owner_of(place)), []).append(line)
        for name, lines in silent.items():
            live = await self._live(name)
            await self._change(live, partial(live.group.silent, lines))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Go on where an earlier process ended, and follow within the block."""
        for folder in await asyncio.to_thread(_folders, self._folder):
            await self._live(folder.name)
        following = asyncio.create_task(self._following())
        try:
            yield
        finally:
            following.cancel()
            self._fitter.stop()
            await asyncio.gather(following, self.settle(), return_exceptions=True)
            await self._note_spent()
            if self._webhook is not None:
                await self._webhook.close()

    async def settle(self) -> None:
        """Wait for the fits that run."""
        fits = [live.fitting for live in self._groups.values() if live.fitting]
        await asyncio.gather(*fits, return_exceptions=True)

    async def _following(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self.follow()
            except Exception:
                _log.exception("learning_not_followed")

    async def _live(self, name: str) -> LiveGroup:
        live = self._groups.get(name)
        if live is not None:
            return live
        async with self._opening:
            if name not in self._groups:
                group = await asyncio.to_thread(Group, name, self._folder / name, self.rules)
                live = LiveGroup(group)
                async with live.lock:
                    await self._publish(live, ())
                self._groups[name] = live
        return self._groups[name]

    async def _change(self, live: LiveGroup, change: Callable[[], list[PhaseLine]]) -> None:
        async with live.lock:
            await self._publish(live, await asyncio.to_thread(change))
        self._fit_if_due(live)

    async def _publish(self, live: LiveGroup, changes: Sequence[PhaseLine]) -> None:
        """Let steps see the state; the versions that guide are loaded before."""
        await self._serve(live, live.group.progress.served)
        version = live.group.progress.version
        if version is not None and version in live.outdated:
            back = partial(live.group.outdated, version, live.outdated[version])
            changes = [*changes, *await asyncio.to_thread(back)]
        live.read_progress(spent_since=time.time() - self.rules.budget.seconds)
        for change in changes:
            _log.info(
                "learning_phase",
                group=live.group.name,
                phase=change.phase,
                trial=change.trial,
                reason=change.reason,
                version=change.version,
            )
        while live.group.own:
            own = live.group.own.popleft()
            self._tell(own.event, live.group.name, own.version, own.reason, phase=own.phase)
        progress = live.group.progress
        interval, latest = progress.interval, progress.latest
        self._models.runtime.metrics.show_learning(
            live.group.name,
            phase={name: float(name == progress.phase) for name in _PHASES},
            episodes={"guided": latest.guided.count, "unguided": latest.control.count},
            extra=extra_figures(progress),
            difference={"low": interval.low, "estimate": interval.estimate, "high": interval.high},
            spent={"tokens": live.noted.tokens, "cost": live.noted.cost},
        )

    def _tell(self, event: str, group: str, version: int | None, reason: str, **more: str) -> None:
        if self._webhook is not None:
            told = {"group": group, "version": version, "reason": reason}
            self._webhook.tell(f"learning.{event}", told | more)

    async def _serve(self, live: LiveGroup, versions: set[int]) -> None:
        """Serve these versions; requests that hold another end with it.

        One that cannot be loaded, such as from a shared folder that does not show it yet, is tried again later; until
        then it guides nothing.
        """
        now = asyncio.get_running_loop().time()
        for version in versions - live.models.keys():
            if now < live.loads_again_s.get(version, 0.0):
                continue
            try:
                live.models[version] = await asyncio.to_thread(
                    open_q_model,
                    self._models.runtime,
                    str(live.group.folder / "versions" / str(version)),
                    name=LEARNED,
                    version=live.label(version),
                    unlicensed=True,  # a trial tells whether it helps
                )
            except (OSError, QGuideError) as error:
                if isinstance(error, OutdatedFeaturesError):
                    live.outdated[version] = str(error)
                _log.error("learned_not_loaded", group=live.group.name, version=version, reason=str(error))
                live.loads_again_s[version] = now + _AFTER_FAILURE_S
        for version in live.models.keys() - versions:
            # Closed with the last request that holds it.
            live.models.pop(version).retire()

    def _fit_if_due(self, live: LiveGroup) -> None:
        running = live.fitting is not None and not live.fitting.done()
        waits = asyncio.get_running_loop().time() < live.fits_again_s
        if live.group.progress.fit_due and not running and not waits:
            # Not in the context of the request, which its log lines would name.
            live.fitting = asyncio.create_task(self._fit(live), context=Context())

    async def _fit(self, live: LiveGroup) -> None:
        try:
            async with self._one_fit:
                await asyncio.to_thread(self._learn, live, asyncio.get_running_loop())
        except Exception:  # whatever it is, the next fit begins later, not at once
            _log.exception("fit_not_noted", group=live.group.name)
            live.fits_again_s = asyncio.get_running_loop().time() + _AFTER_FAILURE_S

    def _learn(self, live: LiveGroup, loop: asyncio.AbstractEventLoop) -> None:
        """Fit if it is still due and nobody else does; on a thread.

        Nobody is told of a fit before its version is loaded: the loop does both under one lock.
        """

        def change(by: Callable[[], list[PhaseLine]]) -> None:
            asyncio.run_coroutine_threadsafe(self._change(live, by), loop).result()

        group = live.group
        with group.learner() as mine:
            if not mine:
                return
            change(group.follow)
            progress = group.progress
            if not progress.fit_due:
                return
            line = self._fitter.fit(group.folder, progress)
            if line is None:
                return
            change(partial(group.fitted, line))
            self._fitter.forget_old(group.folder, keep=group.progress.served)
        outcome = "licensed" if line.licensed else "failed" if line.failed else "unlicensed"
        self._models.runtime.metrics.learning_fits.labels(group.name, outcome).inc()
        _log.info(
            "learning_fit",
            group=group.name,
            version=line.version,
            episodes=line.episodes,
            outcome=outcome,
            reason=line.reason,
            sentence=state_of(group.name, group.progress).sentence,
        )
        if line.failed:
            loop.call_soon_threadsafe(self._tell, "failed", group.name, line.version, line.reason)


def check_learning(settings: Settings) -> None:
    """Refuse to start where nothing could be learned."""
    require_extra("QGUIDE_LEARN", LEARN)  # else only the first fit would miss it
    folder = settings.episodes_folder
    try:
        if folder is not None:
            for private in (folder, folder / LEARNING):  # the mode is not for the parents that `mkdir` makes
                private.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"learning records episodes in {folder}, which cannot be written ({error.strerror}); name another folder "
            "in QGUIDE_EPISODES_DIR"
        ) from error


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir())  # none of a missing one
