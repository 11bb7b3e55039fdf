"""Chunks of a streamed chat completion from its bytes; nothing here touches the network.

Lines are split here, because httpx also splits at Unicode's line separators, which may occur inside
a JSON string.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from qguide_client.chat_types import ChatChunk
from qguide_client.errors import QGuideError, UnreachableError, UnreadableAnswerError, class_of

_DONE: Final = "[DONE]"
_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
_STATUS: Final = 200
"""Status of a stream that has begun; an error in it is told by its code alone."""


class ChatStream:
    """A parser of one completion's chunks.

    Args:
        request_id: id of the request in the server's log.
    """

    def __init__(self, *, request_id: str) -> None:
        self._request_id = request_id
        self._rest = b""
        self._data: list[str] = []
        self._done = False

    def feed(self, content: bytes) -> Iterator[ChatChunk]:
        """Yield the chunks that these bytes complete.

        Raises:
            RefusedError: the server failed after the stream had begun.
            UnreadableAnswerError: the bytes are not chunks.
        """
        *lines, self._rest = _END_OF_LINE.split(self._rest + content)
        for line in lines:
            if line:
                self._read(line)
                continue
            data, self._data = "\n".join(self._data), []
            if data == _DONE:
                self._done = True
            elif data:
                yield self._chunk(data)

    def end(self) -> None:
        """Check that the stream is complete, once the server has closed it.

        Raises:
            UnreachableError: the stream broke off.
        """
        if not self._done:
            raise UnreachableError(
                "the stream broke off before its end; send the request again", request_id=self._request_id
            )

    def _read(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":  # a line that begins with a colon is a keep-alive comment
            self._data.append(value.removeprefix(b" ").decode(errors="replace"))

    def _chunk(self, data: str) -> ChatChunk:
        try:
            body = json.loads(data)
            if isinstance(body, dict) and "error" in body:
                raise self._refusal(body["error"])
            return ChatChunk.model_validate(body)
        except ValueError as error:
            raise UnreadableAnswerError(
                f"an event of the stream is not a completion chunk: {data[:80]!r}", request_id=self._request_id
            ) from error

    def _refusal(self, error: Any) -> QGuideError:
        said = error if isinstance(error, dict) else {"message": error}
        code, message = str(said.get("code") or ""), str(said.get("message"))
        kind = class_of(_STATUS, code)
        return kind(message, status=_STATUS, code=code, request_id=self._request_id)
