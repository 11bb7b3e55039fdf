"""Responses and conversations that later requests continue, per key, for a limited time.

    response       its own input, its output, the outputs of the candidates not taken, and the
                   names of the responses before it
    item           the response that an `item_reference` means
    conversation   its items

`RESPONSE_ID.N` names candidate N of a response, so that an agent can go back and take it.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, cast

from cachetools import TTLCache
from pydantic import TypeAdapter

from qguide.qnet.dialects.shapes import Json
from qguide.server.errors.types import PreviousResponseError, UnknownResponseError
from qguide.server.observability.request_context import scoped_episode_id
from qguide.server.redis.client import NAMESPACE, RedisLink
from qguide.server.responses.schemas import InputItem, ResponsesRequest

_PREFIXES: Final = {"function_call": "fc", "reasoning": "rs", "custom_tool_call": "ctc"}
_ITEMS: Final = TypeAdapter(list[InputItem])


class Shelf:
    """JSON objects by name: in Redis, or in memory without it and while it is down.

    Names are scoped by the caller's key, so that no key reads another's.
    """

    def __init__(self, link: RedisLink | None, *, max_bytes: int, ttl_s: float) -> None:
        self._link = link
        self._own: TTLCache[str, bytes] = TTLCache(max_bytes, ttl_s, getsizeof=_size)
        self._max_bytes = max_bytes
        self._ttl_ms = max(1, round(ttl_s * 1e3))

    async def get(self, names: Sequence[str]) -> list[Json | None]:
        """The objects of these names; None for one that is unknown or has expired."""
        places = [_place(name) for name in names]

        async def alone() -> list[bytes | None]:
            return [self._own.get(place) for place in places]

        async def shared() -> list[bytes | None]:
            assert self._link is not None
            return cast("list[bytes | None]", await self._link.client.mget(places))

        rows = await (self._link.use(shared, alone) if self._link and places else alone())
        return [None if row is None else json.loads(row) for row in rows]

    async def put(self, objects: Mapping[str, Json]) -> None:
        """Keep objects, replacing earlier ones; one that exceeds the whole memory is not kept."""
        rows = {_place(name): json.dumps(one).encode() for name, one in objects.items()}

        async def alone() -> None:
            self._own.update({k: row for k, row in rows.items() if len(row) <= self._max_bytes})

        async def shared() -> None:
            assert self._link is not None
            async with self._link.client.pipeline() as pipe:
                for place, row in rows.items():
                    pipe.set(place, row, px=self._ttl_ms)
                await pipe.execute()

        await (self._link.use(shared, alone) if self._link else alone())

    async def drop(self, name: str) -> None:
        """Forget an object."""

        async def alone() -> None:
            self._own.pop(_place(name), None)

        async def shared() -> None:
            assert self._link is not None
            await self._link.client.delete(_place(name))

        await (self._link.use(shared, alone) if self._link else alone())


@dataclass(frozen=True, slots=True)
class Continued:
    """A request with all of its items.

    Attributes:
        own: items that the request brings itself.
        chain: responses before it, the first first; as `RESPONSE_ID` or `RESPONSE_ID.N`.
        conversation: id of its conversation, "" for none.
    """

    body: ResponsesRequest
    own: list[Json]
    chain: list[str] = field(default_factory=list)
    conversation: str = ""


class StoredResponses:
    """Responses and conversations by their ids."""

    def __init__(self, shelf: Shelf | None) -> None:
        self._shelf = shelf

    def stores(self, body: ResponsesRequest) -> bool:
        """True if the response to this request is to be stored."""
        return self._shelf is not None and body.store is not False

    async def continued(self, body: ResponsesRequest) -> Continued:
        """The request with the items that it continues and refers to in place.

        Raises:
            PreviousResponseError: they are unknown, or have expired.
        """
        named = body.conversation
        conversation = (named if isinstance(named, str) else (named or {}).get("id")) or ""
        own = _own_items(body)
        if self._shelf is None:
            return Continued(body, own)
        given: list[Json] = []
        chain: list[str] = []
        if body.previous_response_id:
            given, chain = await self._before(body.previous_response_id)
        if conversation:
            given = [
                *given,
                *(await self._kept(f"conversation {conversation}", "conversation"))["items"],
            ]
        if not given and not any(item.get("type") == "item_reference" for item in own):
            return Continued(body, own, conversation=conversation)
        own = [await self._referred(item) for item in own]
        whole: Json = {"input": _ITEMS.validate_python([*given, *own])}
        whole |= {"previous_response_id": None, "conversation": None}
        return Continued(body.model_copy(update=whole), own, chain, conversation)

    async def keep(
        self, request: Continued, response: Json, others: Mapping[str, list[Json]]
    ) -> None:
        """Store a finished response, and continue its conversation.

        Args:
            others: items of each candidate by its number.
        """
        if self._shelf is None or not response["store"]:
            return
        own = [_as_stored(item) for item in request.own]
        record = {"response": response, "input": own, "chain": request.chain, "others": others}
        kept: dict[str, Json] = {f"response {response['id']}": record}
        for item in (*own, *response["output"]):
            if item.get("id"):
                kept[f"item {item['id']}"] = {"response": response["id"]}
        if request.conversation:
            name = f"conversation {request.conversation}"
            talk = await self._kept(name, "conversation")
            kept[name] = talk | {"items": [*talk["items"], *own, *response["output"]]}
        await self._shelf.put(kept)

    async def response(self, response_id: str) -> Json:
        """A stored response."""
        return cast(Json, (await self._known(f"response {response_id}"))["response"])

    async def input_items(self, response_id: str) -> list[Json]:
        """All items that a response answers, of those before it as well."""
        record = await self._known(f"response {response_id}")
        return [*await self._along(record["chain"]), *record["input"]]

    async def forget(self, name: str) -> None:
        """Delete `response ID` or `conversation ID`."""
        await self._known(name)
        assert self._shelf is not None
        await self._shelf.drop(name)

    async def converse(self, items: Sequence[Json], metadata: Json) -> Json:
        """Begin a conversation."""
        if self._shelf is None:
            raise UnknownResponseError("nothing is stored (QGUIDE_RESPONSES_TTL_S is 0)")
        talk = {
            "id": f"conv_{uuid.uuid4().hex}",
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": metadata,
        }
        items = [_as_stored(item) for item in items]
        await self._shelf.put({f"conversation {talk['id']}": talk | {"items": items}})
        return talk

    async def conversation(self, conversation_id: str) -> Json:
        """A conversation, its `items` included."""
        return await self._known(f"conversation {conversation_id}")

    async def say(self, conversation_id: str, items: Sequence[Json]) -> list[Json]:
        """Add items to a conversation; returns them with their ids."""
        talk = await self.conversation(conversation_id)
        new = [_as_stored(item) for item in items]
        return await self._rewrite(talk, [*talk["items"], *new]) and new

    async def unsay(self, conversation_id: str, item_id: str) -> Json:
        """Delete an item of a conversation."""
        talk = await self.conversation(conversation_id)
        await self._rewrite(talk, [item for item in talk["items"] if item["id"] != item_id])
        return {name: value for name, value in talk.items() if name != "items"}

    async def _rewrite(self, talk: Json, items: list[Json]) -> list[Json]:
        assert self._shelf is not None
        await self._shelf.put({f"conversation {talk['id']}": talk | {"items": items}})
        return items

    async def _before(self, previous: str) -> tuple[list[Json], list[str]]:
        """Items up to the end of a response or of one of its candidates, and its chain."""
        record = await self._kept(f"response {previous.partition('.')[0]}", "previous_response_id")
        chain = [*record["chain"], previous]
        return await self._along(chain), chain

    async def _along(self, chain: Sequence[str]) -> list[Json]:
        assert self._shelf is not None
        parts = [name.partition(".") for name in chain]
        records = await self._shelf.get([f"response {response}" for response, _, _ in parts])
        items: list[Json] = []
        for (response, _, number), record in zip(parts, records, strict=True):
            if record is None:
                raise _lost(response, "previous_response_id")
            if number and number not in record["others"]:
                raise PreviousResponseError(
                    f"response {response!r} has no candidate {number[:20]!r}; it has 0 to "
                    f"{len(record['others']) - 1}",
                    parameter="previous_response_id",
                )
            items += record["input"]
            items += record["others"][number] if number else record["response"]["output"]
        return items

    async def _referred(self, item: Json) -> Json:
        if item.get("type") != "item_reference":
            return item
        wanted = item.get("id", "")
        response_id = (await self._kept(f"item {wanted}", "input"))["response"]
        record = await self._kept(f"response {response_id}", "input")
        found: list[Json] = [
            one
            for one in (*record["input"], *record["response"]["output"])
            if one.get("id") == wanted
        ]
        return found[0]

    async def _kept(self, name: str, parameter: str) -> Json:
        assert self._shelf is not None
        [known] = await self._shelf.get([name])
        if known is None:
            raise _lost(name.partition(" ")[2], parameter)
        return known

    async def _known(self, name: str) -> Json:
        known = (await self._shelf.get([name]))[0] if self._shelf else None
        if known is None:
            raise UnknownResponseError(
                f"there is no {name[:100]}; it was not stored, was deleted or has expired "
                "(QGUIDE_RESPONSES_TTL_S)"
            )
        return known


def _lost(name: str, parameter: str) -> PreviousResponseError:
    return PreviousResponseError(
        f"{name[:100]!r} was not stored with this key, was deleted or has expired "
        "(QGUIDE_RESPONSES_TTL_S); send the items themselves in `input`",
        parameter=parameter,
    )


def _own_items(body: ResponsesRequest) -> list[Json]:
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}]
    return [item.model_dump(exclude_unset=True) for item in body.input]


def _as_stored(item: Mapping[str, Any]) -> Json:
    """The item with its type, an id and its text as a part, as OpenAI lists it."""
    kind = item.get("type") or "message"
    content = item.get("content")
    if isinstance(content, str) and kind == "message":
        text = "output_text" if item.get("role") == "assistant" else "input_text"
        content = [{"type": text, "text": content}]
    given = {name: value for name, value in item.items() if value is not None} | {"type": kind}
    if content is not None:
        given["content"] = content
    return {"id": f"{_PREFIXES.get(kind, 'msg')}_{uuid.uuid4().hex}"} | given


def _size(row: bytes) -> int:
    return len(row)


def _place(name: str) -> str:
    scoped = sha256(scoped_episode_id(name).encode(errors="surrogatepass")).hexdigest()
    return f"{NAMESPACE}:responses:{scoped}"
