"""Steps whose candidates several policies draw."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from qguide.qnet.errors import InvalidCandidatesError, InvalidRequestError
from qguide.qnet.policies.pool import PolicyPool
from qguide.qnet.types import spent_on
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult, cost_of
from qguide.server.learning.service import Learning
from qguide.server.own_bodies.answers import PolicyUsage
from qguide.server.own_bodies.schemas import PolicyShare
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import ServedPolicy
from qguide.server.settings.settings import Settings

_UPSTREAMS_ALONE: Final = frozenset(("tools", "functions", "response_format"))
"""Parameters without which a policy would answer something else."""


async def pooled(
    asked: GuidedStepRequest, models: Models, settings: Settings, learning: Learning | None
) -> GuidedStepRequest:
    """The request with one policy for all of those that it names.

    The caller's own request in an upstream's dialect is for one upstream, so it is translated. The prior is of votes:
    likelihoods of different policies cannot be compared.
    """
    shares, options = asked.options.policies or (), asked.options
    members = [models.find_policy(share.name) for share in shares]
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        given_names = ", ".join(share.name for share in shares)
        raise InvalidRequestError(f"policies {given_names} mean {', '.join(names)}; name each policy once")
    draws = await _draws(dict(zip(names, shares, strict=True)), asked.num_candidates, learning)
    total = sum(draws.values())
    given = options.model_dump(include={"num_candidates"}, exclude_unset=True, exclude_none=True)
    if (given and asked.num_candidates != total) or total < asked.n:
        raise InvalidCandidatesError(
            f"policies draw {total} candidates, and {max(asked.num_candidates, asked.n)} are asked for; let their n "
            "add up to it, or leave num_candidates out"
        )
    _check_members(asked, members, settings)
    member_of = dict(zip(names, members, strict=True))
    pool = PolicyPool([(name, member_of[name].model, n) for name, n in draws.items()])
    elsewhere = [one.upstream_model for one in members if one.upstream_model]
    policy = ServedPolicy(
        pool.name,
        pool,
        "upstream" if elsewhere else members[0].source,
        manifest=next((one.manifest for one in members if one.manifest), None),
        upstream_model="+".join(elsewhere) or None,
        pool=pool,
    )
    return replace(
        asked,
        policy=policy,
        num_candidates=total,
        sampling=replace(asked.sampling, native=None),
        options=options.model_copy(update={"prior": "votes"}),
    )


async def _draws(shares: Mapping[str, PolicyShare], num_candidates: int, learning: Learning | None) -> dict[str, int]:
    """Number of candidates that each policy draws, by its name; of one that draws none, nothing."""
    given = {name: share.n for name, share in shares.items() if share.n is not None}
    if len(given) == len(shares):
        return given
    if given:
        raise InvalidRequestError(
            f"of policies {', '.join(shares)} some have an n and some have not; give each an n, or none"
        )
    if learning is None:
        raise InvalidRequestError(
            f"policies {', '.join(shares)} have no n, and this server does not split the draws by outcomes; give each "
            "an n, or set QGUIDE_LEARN"
        )
    return await learning.split(tuple(shares), num_candidates)


def _check_members(asked: GuidedStepRequest, members: Sequence[ServedPolicy], settings: Settings) -> None:
    """Refuse for each policy what is refused if it is the only one."""
    for member in members:
        if member.upstream_model is not None:
            settings.reach.check_history(asked.history)
        elif asked.unreadable is not None:
            raise asked.unreadable
        elif found := _UPSTREAMS_ALONE & asked.sampling.parameters.keys():
            raise InvalidRequestError(
                f"the policy {member.name!r} runs in this process and knows no {', '.join(sorted(found))}; leave it "
                "out of the policies"
            )


def with_policies(taken: GuidedStepResult, pool: PolicyPool, settings: Settings) -> GuidedStepResult:
    """The result with each policy's draws, and warnings of the policies that failed."""
    decision = taken.decision
    usages = []
    for name in pool.names:
        drawn = [one for one in decision.candidates if one.policy == name]
        spent, upstream = spent_on(drawn), settings.upstreams.get(name)
        failure = pool.failures.get(name)
        usages.append(
            PolicyUsage(
                name=name,
                candidates=len(drawn),
                prompt_tokens=spent.prompt_tokens,
                completion_tokens=spent.completion_tokens,
                cost=cost_of(spent, upstream.prices if upstream else None),
                error=str(failure) if failure else None,
            )
        )
    drew = {one.name: f"{one.candidates} before it failed" if one.candidates else "none" for one in usages}
    failed = tuple(f"policy {one.name} drew {drew[one.name]}: {one.error}" for one in usages if one.error)
    decision = replace(decision, warnings=(*decision.warnings, *failed))
    return replace(taken, decision=decision, policies=tuple(usages))
