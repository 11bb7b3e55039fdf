"""Health check of an upstream: a request for its models, which costs nothing."""

import asyncio
from typing import Final

import httpx

from qguide.qnet.support.bounded_body import AnswerTooLargeError, UnknownEncodingError, read_bounded

FORBIDDEN: Final = (401, 403)


async def health_problem(
    http: httpx.AsyncClient, *, timeout: httpx.Timeout, max_answer_bytes: int
) -> str | None:
    """Reason why an upstream cannot be used; "" if it can be.

    An upstream without a list of models is healthy: even a 404 shows that it answers. None if it
    could not be asked because all connections were busy, which says nothing about it.
    """
    try:
        async with asyncio.timeout((timeout.connect or 0) + (timeout.read or 0)):
            async with http.stream("GET", "models", timeout=timeout) as response:
                await read_bounded(response, max_bytes=max_answer_bytes)
    except (AnswerTooLargeError, UnknownEncodingError) as error:
        return str(error)
    except httpx.PoolTimeout:
        return None
    except TimeoutError:
        return "did not finish its answer in time"
    except (httpx.TransportError, httpx.DecodingError) as error:
        return f"does not answer ({type(error).__name__})"
    if response.status_code in FORBIDDEN:
        return f"refuses this server's key with {response.status_code}"
    return f"answers with {response.status_code}" if response.is_server_error else ""
