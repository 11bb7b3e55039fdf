"""The bytes of a streamed chat completion as chunks; nothing here touches the network.

httpx cuts lines wherever Unicode has a line end, which JSON texts may hold as they are; so the
bytes are cut here.
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
"""What was sent before the failure; only the error's code tells more."""


class ChatStream:
    """Chunks of one completion.

    Args:
        request_id: what the server's log calls it.
    """

    def __init__(self, *, request_id: str) -> None:
        self._request_id = request_id
        self._rest = b""
        self._data: list[str] = []
        self._done = False

    def feed(self, content: bytes) -> Iterator[ChatChunk]:
        """What these bytes complete.

        Raises:
            RefusedError: the server failed when the stream had begun.
            UnreadableAnswerError: these are no chunks.
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
        """The server closed the stream.

        Raises:
            UnreachableError: too early.
        """
        if not self._done:
            raise UnreachableError(
                "the stream broke off before its end; ask again", request_id=self._request_id
            )

    def _read(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":  # a line that begins with a colon is a sign of life
            self._data.append(value.removeprefix(b" ").decode(errors="replace"))

    def _chunk(self, data: str) -> ChatChunk:
        try:
            body = json.loads(data)
            if isinstance(body, dict) and "error" in body:
                raise self._refusal(body["error"])
            return ChatChunk.model_validate(body)
        except ValueError as error:
            raise UnreadableAnswerError(
                f"the stream holds what is no chunk of a completion ({data[:80]!r})",
                request_id=self._request_id,
            ) from error

    def _refusal(self, error: Any) -> QGuideError:
        said = error if isinstance(error, dict) else {"message": error}
        code, message = str(said.get("code") or ""), str(said.get("message"))
        kind = class_of(_STATUS, code)
        return kind(message, status=_STATUS, code=code, request_id=self._request_id)
