"""POST /v1/rerank, /v2/rerank, /score, /classify, /pooling, /verify: Q in other servers' formats.

Jina's, vLLM's, Infinity's, TEI's and Voyage's clients call /rerank or /v1/rerank, Cohere's call /v2/rerank. TEI's ask
for /info and /tokenize, too. vLLM's clients also call /score and /v1/score, which is ours as well, and /classify and
/pooling for the reward of a conversation's last action; its semantic router calls /verify.
"""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from qguide.qnet.errors import InvalidCandidatesError, InvalidRequestError
from qguide.qnet.types import History, Message, ScoreResult
from qguide.qnet.work import all_of
from qguide.server.guidance.score_step import ScoringService
from qguide.server.http.bodies import BodyRoute, translate_body
from qguide.server.own_bodies.history import TriedCandidates, check_size
from qguide.server.q_models.threaded import QModelLease
from qguide.server.rerank.jina_cohere import (
    CohereRerankRequest,
    CohereRerankResponse,
    JinaRerankResponse,
    RerankRequest,
    cohere_response,
    jina_response,
    messages_of,
)
from qguide.server.rerank.tei_voyage import (
    AnyRerankRequest,
    TeiInfo,
    TeiRank,
    TeiRerankRequest,
    TeiToken,
    TeiTokenizeRequest,
    VoyageRerankRequest,
    VoyageRerankResponse,
    tei_response,
    tei_tokens,
    voyage_response,
)
from qguide.server.rerank.vllm import (
    ClassifyResponse,
    PairScoreRequest,
    PairScoreResponse,
    PoolingRequest,
    PoolingResponse,
    VerifyRequest,
    VerifyResponse,
    pair_response,
)
from qguide.server.routes.dependencies import ScoringDep

router = APIRouter(tags=["rerank"], route_class=BodyRoute)


@router.post("/rerank", response_model_exclude_none=True)
@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank_like_jina(
    body: AnyRerankRequest, scoring: ScoringDep
) -> JinaRerankResponse | VoyageRerankResponse | list[TeiRank]:
    """Rank documents by Q, in Jina's format, or in TEI's or Voyage's if the body has it."""
    if isinstance(body, TeiRerankRequest):
        return tei_response(body, (await _rank(body, body.texts, scoring))[1])
    if isinstance(body, VoyageRerankRequest):
        return voyage_response(body, *await _rank(body, body.documents, scoring))
    return jina_response(body, *await _rank(body, body.texts, scoring))


@router.get("/info")
async def tei_info(scoring: ScoringDep) -> TeiInfo:
    """Tell what scores here, as TEI tells of its reranker."""
    settings = scoring.settings
    with await scoring.hold(None, None) as q_model:
        return TeiInfo(
            model_id=q_model.id,
            model_dtype=settings.dtype,
            max_concurrent_requests=settings.max_connections,
            max_input_length=q_model.model.context,
            max_batch_tokens=settings.tokens_per_forward,
            max_client_batch_size=settings.max_candidates,
        )


@router.post("/tokenize", response_model=list[list[TeiToken]])
async def tei_tokenize(body: TeiTokenizeRequest, scoring: ScoringDep) -> Response:
    """Tokens of plain texts as the Q model's tokenizer makes them, in TEI's format."""
    texts, most = body.texts, scoring.settings.max_candidates
    if not 1 <= len(texts) <= most:
        raise InvalidRequestError(f"there are {len(texts)} inputs; send 1 to {most} (QGUIDE_MAX_CANDIDATES)")
    check_size("inputs", texts, scoring.settings.max_text_bytes)
    with scoring.models.q_models.hold(scoring.models.find_reranker(body.model)) as held:
        written = await held.model.pieces(texts, special=body.add_special_tokens, write=tei_tokens)
    if written is None:
        raise InvalidRequestError(
            f"the Q model {held.id!r} has no tokenizer in this server; name one that has as model"
        )
    return Response(written, media_type="application/json")


@router.post("/v2/rerank", response_model_exclude_none=True)
async def rerank_like_cohere(body: CohereRerankRequest, scoring: ScoringDep) -> CohereRerankResponse:
    """Rank documents by Q, in Cohere's format."""
    return cohere_response(body, *await _rank(body, body.texts, scoring))


@router.post("/score")
async def score_pairs(body: PairScoreRequest, scoring: ScoringDep) -> PairScoreResponse:
    """Return the raw Q of each pair of query and document, in vLLM's format."""
    texts = [body.documents] if isinstance(body.documents, str) else body.documents
    documents = scoring.documents(texts)
    histories = _histories(body, len(documents), scoring)
    with await scoring.hold(scoring.models.find_reranker(body.model), body.episode_id) as q_model:
        q_values, scored = await _score_pairs(histories, documents, q_model, scoring)
    return pair_response(q_values, q_model.id, scored, activation=bool(body.use_activation))


@router.post("/classify")
async def classify(body: PoolingRequest, request: Request, scoring: ScoringDep) -> ClassifyResponse:
    """Return Q as the score of the only label; raw with `use_activation` false."""
    return ClassifyResponse.of(body, *await _score_last(body, request, scoring))


@router.post("/pooling")
async def pool(body: PoolingRequest, request: Request, scoring: ScoringDep) -> PoolingResponse:
    """Return Q as a vector of one number; raw with `use_activation` false."""
    return PoolingResponse.of(body, *await _score_last(body, request, scoring))


@router.post("/verify")
async def verify(body: VerifyRequest, scoring: ScoringDep) -> VerifyResponse:
    """Return Q of an answer as confidence, in the format of vLLM's semantic router."""
    question = f"{body.context}\n{body.question}" if body.context else body.question
    q_model, scored = await scoring.step(
        scoring.history(messages_of(question, None)),
        TriedCandidates(scoring.documents([body.answer])),
        q_model=scoring.models.find_reranker(body.model),
        episode_id=body.episode_id,
    )
    if q_model.model.ranks:
        raise InvalidRequestError(
            f"{q_model.id} ranks the candidates of one step, so its value of a single answer says nothing; "
            f"{q_model.model.comparable}"
        )
    confidence = 0.0 if scored.out_of_domain else min(max(scored.result.q_values[0], 0.0), 1.0)
    return VerifyResponse(
        confidence=confidence,
        should_escalate=confidence < body.threshold,
        out_of_domain=scored.out_of_domain,
        threshold=body.threshold,
        q_value=scored.result.q_values[0],
        model=q_model.id,
    )


async def _score_last(body: PoolingRequest, request: Request, scoring: ScoringService) -> tuple[str, ScoreResult]:
    history, action = await translate_body(request, body.split)
    q_model, scored = await scoring.step(
        scoring.history(history),
        scoring.candidates([action]),
        q_model=scoring.models.find_reranker(body.model),
        episode_id=body.episode_id,
    )
    return q_model.id, scored.result


async def _rank(
    body: RerankRequest | TeiRerankRequest | VoyageRerankRequest, texts: Sequence[str], scoring: ScoringService
) -> tuple[str, ScoreResult]:
    messages = body.messages if isinstance(body, RerankRequest) else None
    q_model, scored = await scoring.step(
        scoring.history(messages_of(body.query, messages)),
        TriedCandidates(scoring.documents(texts)),
        q_model=scoring.models.find_reranker(body.model),
        episode_id=body.episode_id,
    )
    return q_model.id, scored.result


async def _score_pairs(
    histories: Sequence[History], documents: Sequence[Message], q_model: QModelLease, scoring: ScoringService
) -> tuple[list[float], list[ScoreResult]]:
    """Q of each pair, in order; pairs with the same history are scored as one request."""
    places: dict[History, list[int]] = {}
    for place, history in enumerate(histories):
        places.setdefault(history, []).append(place)
    scored = await all_of(
        [
            scoring.score(history, TriedCandidates(tuple(documents[i] for i in mine)), q_model)
            for history, mine in places.items()
        ]
    )
    results = [one.result for one in scored]
    q_of_place = {
        place: q
        for mine, one in zip(places.values(), results, strict=True)
        for place, q in zip(mine, one.q_values, strict=True)
    }
    return [q_of_place[place] for place in range(len(documents))], results


def _histories(body: PairScoreRequest, number: int, scoring: ScoringService) -> list[History]:
    if body.queries is None or isinstance(body.queries, str):
        return [scoring.history(messages_of(body.queries, body.messages))] * number
    histories = [scoring.history(messages_of(query, None)) for query in body.queries]
    if len(histories) not in (1, number):
        raise InvalidCandidatesError(
            f"{len(histories)} queries and {number} documents cannot be paired; send one query, or one per document"
        )
    return histories * number if len(histories) == 1 else histories
