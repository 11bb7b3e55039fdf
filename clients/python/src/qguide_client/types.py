"""What is asked and what is answered.

Answers may hold more than is named here: a newer server's fields are passed over. A question that
leaves an option out gets the server's default.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict

Messages = Sequence[Mapping[str, Any]]
"""The history in OpenAI's shape; the last turn is not the agent's."""


class Answer(BaseModel):
    """What a server says; it cannot be changed."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


Candidate = str | Mapping[str, Any]
"""What an agent might do next: a text, or an assistant's message (with `tool_calls`).

For a Q model whose `read_at` is "observation" the message also has the `observation`, which is what
trying the action answered: a text, or the tools' results as messages.
"""


class ScoreItem(TypedDict):
    """One history and the candidates for what comes next; one item of a batch."""

    messages: Messages
    candidates: Sequence[Candidate]


class CallOptions(TypedDict, total=False):
    """How long to wait.

    Attributes:
        deadline_s: seconds, retries included, after which the answer is of no use; the server
            stops its work then. It may have a shorter limit of its own.
    """

    deadline_s: float


class ModelOptions(CallOptions, total=False):
    """Which Q model scores.

    Attributes:
        q_model: a name, `name@version` or alias.
        episode_id: keeps an episode with one Q model where the operator split them.
    """

    q_model: str
    episode_id: str


class ActOptions(ModelOptions, total=False):
    """How candidates are drawn and scored.

    Attributes:
        num_candidates: M, how many to draw.
        temperature: of the draws, from 0 to 5.
        greedy_candidate: whether the first is drawn at temperature 0.
        max_tokens: of each candidate.
        seed: makes the draws repeatable.
        policy: the policy's name.
        fallback: "first" takes the first candidate where no Q can be given.
        adaptive: draw in small batches, until Q rises over the previous step's; needs an
            `episode_id` or `previous_q`.
        previous_q: Q of the action that led here; the server knows it of an episode.
        perturb: draw the candidates after the first under paraphrases of the task.
        task: what to paraphrase, where the server does not find it in the first message.
    """

    num_candidates: int
    temperature: float
    greedy_candidate: bool
    max_tokens: int
    seed: int
    policy: str
    fallback: Literal["error", "first"]
    adaptive: bool
    previous_q: float
    perturb: bool
    task: str


class RerankOptions(ModelOptions, total=False):
    """What is returned, and which Q model scores.

    Attributes:
        top_n: how many of the best; without it all.
    """

    top_n: int


class OutcomeOptions(TypedDict, total=False):
    """How an episode ended.

    Attributes:
        terminated: false where a limit of steps cut it off.
        action: the last one, if it was not the chosen one.
        observation: what the last action brought.
    """

    terminated: bool
    action: str
    observation: str


class CalledFunction(Answer):
    """What a tool call calls; `arguments` is JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Answer):
    """One tool call of an assistant's turn."""

    id: str
    type: str = "function"
    function: CalledFunction

    @property
    def name(self) -> str:
        """What is called."""
        return self.function.name


class CalledTool(Answer):
    """What a custom tool is given; `input` is any text."""

    name: str
    input: str


class CustomToolCall(Answer):
    """One call of a custom tool of an assistant's turn."""

    id: str
    type: Literal["custom"]
    custom: CalledTool

    @property
    def name(self) -> str:
        """What is called."""
        return self.custom.name


AnyToolCall = ToolCall | CustomToolCall
"""`type` says which; it is "custom" for one of a custom tool."""


class Message(Answer):
    """One turn, OpenAI's shape; `content` may be None beside tool calls."""

    role: str
    content: str | None = None
    tool_calls: tuple[AnyToolCall, ...] | None = None
    tool_call_id: str | None = None


class ScoreUsage(Answer):
    """Tokens that the scorer computed, and that it found in its cache."""

    scored_tokens: int
    cached_tokens: int


class Usage(ScoreUsage):
    """Also the tokens of the history as the policy reads it, and those that were generated.

    Attributes:
        cached_prompt_tokens: of the prompt, that an upstream knew already.
    """

    prompt_tokens: int
    completion_tokens: int
    paraphrase_tokens: int = 0
    cached_prompt_tokens: int = 0


class ScoreTimings(Answer):
    """Milliseconds per stage in the server, waiting included."""

    score: float
    total: float


class Timings(ScoreTimings):
    """Also the time it took to reword the task and to draw the candidates."""

    sample: float
    paraphrase: float = 0.0


class ScoredCandidate(Answer):
    """A candidate and its Q; None where the server could give none and said so."""

    message: Message
    q_value: float | None


class Decision(Answer):
    """The chosen action and everything that it was chosen from.

    Attributes:
        action: the chosen reply.
        chosen: its index among the candidates.
        reason: why this one, for example "highest_q".
        guided: whether a Q model had a say; where not, `unguided_reason` says why.
        draws_saved: candidates that `adaptive` did without.
        perturbed: candidates that were drawn under a paraphrase.
        warnings: what was asked for and could not be had.
    """

    action: str
    chosen: int
    reason: str
    candidates: tuple[ScoredCandidate, ...]
    guided: bool = True
    unguided_reason: str | None = None
    draws_saved: int = 0
    perturbed: int = 0
    warnings: tuple[str, ...] = ()
    policy: str
    q_model: str
    q_model_version: str
    usage: Usage
    timings_ms: Timings


class Score(Answer):
    """Q of the candidate at `index`."""

    index: int
    q_value: float


class ScoredItem(Answer):
    """Q of every candidate of one history, in the order in which they were sent.

    Attributes:
        chosen: the index of the best.
        reason: why this one, for example "highest_q".
    """

    scores: tuple[Score, ...]
    chosen: int
    reason: str
    usage: ScoreUsage

    @property
    def q_values(self) -> tuple[float, ...]:
        """Q alone."""
        return tuple(score.q_value for score in self.scores)


class Scores(ScoredItem):
    """Also which version scored, and how long it took."""

    q_model: str
    q_model_version: str
    timings_ms: ScoreTimings


class ScoreBatch(Answer):
    """One answer per item, in the order in which they were sent."""

    items: tuple[ScoredItem, ...]
    q_model: str
    q_model_version: str
    timings_ms: ScoreTimings


class RankedDocument(Answer):
    """A document's place, and its Q.

    Attributes:
        index: among the documents that were sent.
        relevance_score: the logistic function of Q, in [0, 1].
    """

    index: int
    relevance_score: float
    q_value: float


class RerankUsage(Answer):
    """Tokens of the history and the documents, and how many of them were cached."""

    total_tokens: int
    cached_tokens: int


class Ranking(Answer):
    """The documents from the highest Q to the lowest.

    Attributes:
        model: the `name@version` that scored.
    """

    model: str
    results: tuple[RankedDocument, ...]
    usage: RerankUsage


class Outcome(Answer):
    """An episode that has its outcome.

    Attributes:
        steps: different states that it was guided in.
        recorded: whether it became training data.
        reason: why it did not.
    """

    episode_id: str
    reward: float
    steps: int
    recorded: bool
    reason: str | None = None


class ModelCard(Answer):
    """A model that is served; see the server's /docs."""

    id: str
    kind: str
    name: str
    version: str | None
    created: int = 0
    owned_by: str = ""
    source: str
    default: bool
    context: int | None
    checkpoint: str | None
    environment: str | None
    read_at: str | None = None
    target: str | None
    metrics: dict[str, float]


class ModelList(Answer):
    """All models that are served, and the names that lead to the Q models."""

    data: tuple[ModelCard, ...]
    aliases: dict[str, str]
    splits: dict[str, dict[str, float]]
    shadows: dict[str, str]


class Readiness(Answer):
    """Whether requests can be served, and if not, why; true where they can.

    Attributes:
        details: what else is to be known, for example whether Redis answers.
    """

    status: str
    reason: str | None = None
    details: dict[str, str] = {}

    def __bool__(self) -> bool:
        return self.status != "unavailable"
