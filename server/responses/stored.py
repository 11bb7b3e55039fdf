"""Responses and conversations that later requests continue, per key, for a limited time.

    response       its input, its output, those of candidates not taken, names of those before it
    item           the response that an `item_reference` means
    conversation   its items

`RESPONSE_ID.N` names candidate N of a response, so that an agent can go back and take it.
"""

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from pydantic import TypeAdapter

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError
from qguide.server.http.errors import PreviousResponseError, UnknownResponseError
from qguide.server.http.long_bodies import LongBodies
from qguide.server.observability.request_context import scoped_episode_id
from qguide.server.redis.client import RedisLink
from qguide.server.responses.schemas import (
    BYTES_PER_ITEM,
    Continued,
    InputItem,
    ResponsesRequest,
    as_listed,
    dumped,
    id_of,
    kind_of,
    said,
)
from qguide.server.responses.shelf import Shelf, row_of, rows_of
from qguide.server.settings.settings import Settings

_UNANSWERED: Final = ("queued", "in_progress")
_ANSWERED: Final = ("completed", "incomplete")
_ITEMS: Final = TypeAdapter(list[InputItem])
_LOST_S: Final = 60.0  # beyond a step's time limit, until a response in the background is taken for lost
_LOOK_S: Final = 1.0  # between looks whether another server was told to stop a response


def build_stored(settings: Settings, link: RedisLink | None, bodies: LongBodies) -> "StoredResponses":
    """The store that the settings describe."""
    shelf = partial(
        Shelf, bodies=bodies, max_bytes=settings.responses_memory_bytes, max_body_bytes=settings.max_body_bytes
    )
    ttl_s = settings.responses_ttl_s
    return StoredResponses(
        shelf(link, ttl_s=ttl_s) if ttl_s else None,
        unstored=shelf(None, ttl_s=math.inf),
        longest_s=settings.timeout_s + _LOST_S,
    )


@dataclass(slots=True)
class StoredResponses:
    """Responses and conversations by their ids."""

    shelf: Shelf | None
    _: KW_ONLY
    unstored: Shelf  # has what may not be stored, as long as its WebSocket is open
    longest_s: float  # time after which a response in the background is lost with its server
    _running: dict[str, asyncio.Future[Json]] = field(default_factory=dict)

    def stores(self, body: ResponsesRequest) -> bool:
        """True if the response to this request is to be stored."""
        return self.shelf is not None and body.store is not False

    async def continued(self, body: ResponsesRequest, *, size: int) -> Continued:
        """The request with the items that it continues and refers to in place."""
        named = body.conversation
        conversation = (named if isinstance(named, str) else (named or {}).get("id")) or ""
        own = [said(body.input)] if isinstance(body.input, str) else body.input
        previous = body.previous_response_id
        if self.shelf is None and not (previous and (await self._get([row_of(previous)]))[0]):
            return Continued(body, own, size)
        given: list[Json] = []
        chain: list[str] = []
        if previous:
            chain = [*(await self._kept(row_of(previous), "previous_response_id"))["chain"], previous]
            given = await self._along(chain)
        if conversation:
            talk = await self._kept(f"conversation {conversation}", "conversation")
            given = [*given, *talk["items"]]
        named_items = [id_of(item) for item in own if kind_of(item) == "item_reference"]
        if not given and not named_items:
            body = body.model_copy(update={"previous_response_id": None, "conversation": None})
            return Continued(body, own, size, chain, conversation)
        found = await self._referred(named_items)

        def whole() -> Continued:
            ours = [found[id_of(item)] if kind_of(item) == "item_reference" else dumped(item) for item in own]
            update: Json = {"input": _ITEMS.validate_python([*given, *ours])}
            update |= {"previous_response_id": None, "conversation": None}
            return Continued(body.model_copy(update=update), ours, size, chain, conversation)

        return await self.unstored.apart(whole, size=size + BYTES_PER_ITEM * len(given))

    async def keep(
        self,
        request: Continued,
        response: Json,
        others: Mapping[str, list[Json]],
        *,
        open_rows: list[str] | None = None,
    ) -> None:
        """Store a finished response, and continue its conversation.

        Args:
            open_rows: gets the names of what is not stored, but kept while a WebSocket is open.
        """
        shelf = self.shelf if response["store"] else self.unstored
        if shelf is None or (shelf is self.unstored and open_rows is None):
            return
        talk: Json = {}
        begun: Json | None = None
        if response["background"]:  # it may have been cancelled or deleted meanwhile
            [begun] = await shelf.get([f"response {response['id']}"])
            if begun is None or begun["response"]["status"] not in _UNANSWERED:
                return
        if request.conversation and response["store"]:
            talk = await self._kept(f"conversation {request.conversation}", "conversation")

        def rows() -> dict[str, Json]:
            own = begun["input"] if begun else _own_of(request)
            kept = rows_of(response, own, request.chain, others)
            if shelf is self.unstored and open_rows is not None:  # without items, often thousands
                open_rows.append(row_of(response["id"]))
                kept = {name: kept[name] for name in open_rows[-1:]}
            if talk:
                items = [*talk["items"], *own, *response["output"]]
                kept[f"conversation {request.conversation}"] = talk | {"items": items}
            return kept

        size = request.size + BYTES_PER_ITEM * len(talk.get("items", ()))
        await shelf.put(rows, size=size)

    def forget_open(self, names: Sequence[str]) -> None:
        """Forget what was kept for a WebSocket."""
        for name in names:
            self.unstored.pop(name)

    async def _get(self, names: Sequence[str]) -> list[Json | None]:
        """The objects of these names; None for one that is neither stored nor kept."""
        found = await self.unstored.get(names)
        if self.shelf is None or None not in found:
            return found
        return [a or b for a, b in zip(found, await self.shelf.get(names), strict=True)]

    async def begin(self, request: Continued, response: Json) -> None:
        """Store a response whose output comes in the background."""
        if self.shelf is None or not response["store"]:
            raise InvalidRequestError(
                "background needs a stored response; leave out `store`, and let the operator store responses "
                "(QGUIDE_RESPONSES_TTL_S)"
            )

        def row() -> dict[str, Json]:
            own = _own_of(request)
            record = {"response": response, "input": own, "chain": request.chain, "others": {}}
            return {f"response {response['id']}": record}

        await self.shelf.put(row, size=request.size)

    async def run(self, response: Json, complete: Callable[[], Awaitable[Json]], failed: Callable[..., Json]) -> None:
        """Answer in the background, and store the failure if there is no answer."""
        place = scoped_episode_id(response["id"])
        work = self._running[place] = asyncio.ensure_future(complete())
        shared = self.shelf if self.shelf and self.shelf.is_shared else None
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
                if shared and (await shared.get([f"stop {response['id']}"]))[0] is not None:
                    break
        finally:
            del self._running[place]
            work.cancel()
            [done] = await asyncio.gather(work, return_exceptions=True)
            if isinstance(done, BaseException):
                with suppress(UnknownResponseError):  # it has been deleted
                    await self._end(response["id"], lambda told: failed(told, done))

    async def cancel(self, response_id: str) -> Json:
        """Cancel a response in the background; one that has ended stays as it is."""
        told = await self.response(response_id)
        if not told["background"]:
            raise InvalidRequestError(f"response {response_id[:100]!r} is not in the background: nothing to cancel")
        told = await self._end(response_id, lambda told: told | {"status": "cancelled"})
        await self._stop(response_id)  # not before: what is stopped ends as failed
        return told

    async def _stop(self, response_id: str) -> None:
        """Stop the work of a response in the background, or tell the server that does it."""
        if work := self._running.get(scoped_episode_id(response_id)):
            work.cancel()
        elif self.shelf is not None and self.shelf.is_shared:
            await self.shelf.put(lambda: {f"stop {response_id}": {}}, size=0)

    async def _end(self, response_id: str, ended: Callable[[Json], Json]) -> Json:
        record = await self._known(f"response {response_id}")
        told: Json = record["response"]
        if told["status"] not in _UNANSWERED or self.shelf is None:
            return told
        told = ended(told)
        row = {f"response {response_id}": record | {"response": told}}
        await self.shelf.put(lambda: row, size=BYTES_PER_ITEM * len(record["input"]))
        return told

    async def response(self, response_id: str) -> Json:
        """A stored response."""
        told: Json = (await self._known(f"response {response_id}"))["response"]
        if told["status"] in _UNANSWERED and time.time() > told["created_at"] + self.longest_s:
            lost = {"code": "server_error", "message": "the server that answered it has stopped"}
            return told | {"status": "failed", "error": lost}
        return told

    async def ended(self, response_id: str) -> Json:
        """A stored response, once it has been answered."""
        while (told := await self.response(response_id))["status"] in _UNANSWERED:
            if work := self._running.get(scoped_episode_id(response_id)):
                await asyncio.wait({work})
            else:
                await asyncio.sleep(_LOOK_S)
        return told

    async def input_items(self, response_id: str) -> list[Json]:
        """All items that a response answers, of those before it as well."""
        record = await self._known(f"response {response_id}")
        return [*await self._along(record["chain"]), *record["input"]]

    async def forget(self, name: str) -> None:
        """Delete `response ID` or `conversation ID`."""
        known = await self._known(name)
        if self.shelf:
            await self.shelf.drop(name)
        if known.get("response", {}).get("status") in _UNANSWERED:
            await self._stop(name.partition(" ")[2])

    async def converse(self, items: Sequence[Json], metadata: Json) -> Json:
        """Begin a conversation."""
        if self.shelf is None:
            raise UnknownResponseError("nothing is stored (QGUIDE_RESPONSES_TTL_S is 0)")
        talk: Json = {"id": f"conv_{uuid.uuid4().hex}", "object": "conversation"}
        talk |= {"created_at": int(time.time()), "metadata": metadata}
        return await self._rewrite(talk, [as_listed(item) for item in items])

    async def conversation(self, conversation_id: str) -> Json:
        """A conversation, its `items` included."""
        return await self._known(f"conversation {conversation_id}")

    async def label(self, conversation_id: str, metadata: Json) -> Json:
        """Replace a conversation's metadata."""
        talk = await self.conversation(conversation_id)
        return await self._rewrite(talk | {"metadata": metadata}, talk["items"])

    async def say(self, conversation_id: str, items: Sequence[Json]) -> list[Json]:
        """Add items to a conversation; returns them with their ids."""
        talk = await self.conversation(conversation_id)
        new = [as_listed(item) for item in items]
        await self._rewrite(talk, [*talk["items"], *new])
        return new

    async def unsay(self, conversation_id: str, item_id: str) -> Json:
        """Delete an item of a conversation."""
        talk = await self.conversation(conversation_id)
        return await self._rewrite(talk, [one for one in talk["items"] if one["id"] != item_id])

    async def _rewrite(self, talk: Json, items: list[Json]) -> Json:
        """Store a conversation with these items; returns it without them."""
        assert self.shelf is not None
        row = {f"conversation {talk['id']}": talk | {"items": items}}
        await self.shelf.put(lambda: row, size=BYTES_PER_ITEM * len(items))
        return {name: value for name, value in talk.items() if name != "items"}

    async def _along(self, chain: Sequence[str]) -> list[Json]:
        parts = [name.partition(".") for name in chain]
        records = await self._get([f"response {response}" for response, _, _ in parts])
        items: list[Json] = []
        for (response, _, number), record in zip(parts, records, strict=True):
            if record is None:
                raise _lost(response, "previous_response_id")
            if (status := record["response"]["status"]) not in _ANSWERED:
                raise PreviousResponseError(
                    f"response {response!r} is {status}; continue one that is completed",
                    parameter="previous_response_id",
                )
            if number and number not in record["others"]:
                raise PreviousResponseError(
                    f"response {response!r} has no candidate {number[:20]!r}; it has 0 to {len(record['others']) - 1}",
                    parameter="previous_response_id",
                )
            items += record["input"]
            items += record["others"][number] if number else record["response"]["output"]
        return items

    async def _referred(self, names: Sequence[str]) -> dict[str, Json]:
        """Stored items by their ids; each response that has some is read once."""
        if not names:
            return {}
        ids = list(dict.fromkeys(names))
        held = await self._get([f"item {name}" for name in ids])
        if None in held:
            raise _lost(ids[held.index(None)], "input")
        holders = list(dict.fromkeys(row["response"] for row in held if row))
        records = await self._get([f"response {holder}" for holder in holders])
        items = {
            item.get("id"): item
            for record in records
            if record
            for item in (*record["input"], *record["response"]["output"])
        }
        for name in ids:
            if name not in items:
                raise _lost(name, "input")
        return items

    async def _kept(self, name: str, parameter: str) -> Json:
        [known] = await self._get([name])
        if known is None:
            raise _lost(name.partition(" ")[2], parameter)
        return known

    async def _known(self, name: str) -> Json:
        known = (await self.shelf.get([name]))[0] if self.shelf else None
        if known is None:
            raise UnknownResponseError(
                f"there is no {name[:100]}; it was not stored, was deleted or has expired (QGUIDE_RESPONSES_TTL_S)"
            )
        return known


def _own_of(request: Continued) -> list[Json]:
    return [as_listed(dumped(item)) for item in request.own]


def _lost(name: str, parameter: str) -> PreviousResponseError:
    return PreviousResponseError(
        f"{name[:100]!r} was not stored with this key, was deleted or has expired (QGUIDE_RESPONSES_TTL_S); send the "
        "items themselves in `input`",
        parameter=parameter,
    )
