"""Score requests to sequence classifiers, which read whole conversations."""

from dataclasses import dataclass
from itertools import takewhile

from qguide.qnet.rendering.renderer import RenderedEpisode, Renderer
from qguide.qnet.scoring.rendered_requests import (
    RenderedRequest,
    plan_request,
    require_candidates,
    require_fit,
    require_observations,
)
from qguide.qnet.types import History, ScoreRequest


@dataclass(frozen=True, slots=True)
class ConversationRenderer:
    """Makes tokens of the requests to a classifier: each conversation as its template prints it.

    What the conversations of a request begin with alike takes the place of the history, whatever
    the template does with earlier turns.

    Attributes:
        name: of the classifier.
        context: most tokens of a conversation.
        pad_token_id: transformers' classifiers read at the last token that is not this one, so it
            is left out at the end; None where they read at the last token.
    """

    renderer: Renderer
    name: str
    context: int
    pad_token_id: int | None

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens."""
        require_candidates(request)
        require_observations(request, name=self.name, reads_observation=False)
        whole = [self._encode((*request.history, said)) for said in request.candidates]
        require_fit(max(map(len, whole)), name=self.name, context=self.context)
        # Each candidate keeps a token of its own, at which it is read.
        alike = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*whole, strict=False)))
        shared = min(alike, *(len(one) - 1 for one in whole))
        state = RenderedEpisode(whole[0][:shared], [])
        behind = [tuple(one[shared:]) for one in whole]
        return plan_request(state, behind, list(map(len, behind)), request.cache_salt)

    def prepare_history(self, request: ScoreRequest) -> None:
        """Nothing: where a conversation begins to differ is known from the candidates alone."""
        return None

    def _encode(self, messages: History) -> list[int]:
        token_ids = self.renderer.encode_conversation(messages, most_tokens=self.context)
        while len(token_ids) > 1 and token_ids[-1] == self.pad_token_id:
            token_ids.pop()
        return token_ids
