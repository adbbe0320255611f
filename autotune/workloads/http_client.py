"""A client over HTTP: sends a request, reads its answer, streamed ones token by token."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from autotune.core.errors import UnavailableError
from autotune.core.requests import Answer
from autotune.core.text import clean, describe
from autotune.workloads.payloads import Payload

MAX_ANSWER_BYTES = 64 * 2**20
MAX_LINE_BYTES = 2**20  # of a stream
MAX_QUOTED = 100
DONE = b"[DONE]"
STREAM = "text/event-stream"


class HttpClient:
    """Many requests at a time to one server, on kept connections.

    Args:
        base_url: Such as http://127.0.0.1:8000.
        request: Path, method and timeout, as of the workload's options.
        is_streamed: The answer is a stream of tokens.
    Raises:
        UnavailableError: The package is missing.
    """

    def __init__(
        self,
        base_url: str,
        request: Mapping[str, Any],
        payload: Payload,
        headers: Mapping[str, str],
        *,
        is_streamed: bool,
    ) -> None:
        self._http = import_aiohttp()
        self._url = base_url + str(request["path"])
        self._method, self._timeout_s = str(request["method"]), float(request["timeout_s"])
        self._payload, self._is_streamed = payload, is_streamed
        self._headers = dict(headers)
        self._session: Any = None

    async def __aenter__(self) -> HttpClient:
        http = self._http
        self._session = http.ClientSession(
            connector=http.TCPConnector(limit=0),
            timeout=http.ClientTimeout(total=self._timeout_s),
            cookie_jar=http.DummyCookieJar(),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def send(self, number: int) -> Answer:
        """Send a request and read its answer to the end; a failure is an answer with an error."""
        try:
            async with self._session.request(
                self._method,
                self._url,
                data=self._payload(number) or None,
                allow_redirects=False,
            ) as response:
                if not 200 <= response.status < 300:
                    return _failed(f"HTTP {response.status} {await _quoted(response)}".strip())
                if self._is_streamed:
                    return await _streamed(response)
                return await _read(response)
        except asyncio.TimeoutError:
            return _failed(f"no answer within {self._timeout_s:g} s")
        except (self._http.ClientError, OSError, ValueError) as error:
            return _failed(describe(error))


def import_aiohttp() -> Any:
    """The package that speaks HTTP.

    Raises:
        UnavailableError: It is not installed.
    """
    try:
        import aiohttp
    except ImportError:
        raise UnavailableError(
            "workload.server needs aiohttp: pip install 'autotune-npu[server]'"
        ) from None
    return aiohttp


def _failed(error: str) -> Answer:
    return Answer(time.monotonic(), " ".join(clean(error).split()) or "unknown failure")


async def _quoted(response: Any) -> str:
    """The beginning of what a refusal says."""
    data = await response.content.read(MAX_QUOTED)
    return f"{response.reason or ''}: {data.decode(errors='replace')}".rstrip(": \n")


async def _read(response: Any) -> Answer:
    size = 0
    async for data in response.content.iter_chunked(2**16):
        size += len(data)
        if size > MAX_ANSWER_BYTES:
            return _failed(f"the answer is above {MAX_ANSWER_BYTES} bytes")
    return Answer(time.monotonic())


async def _streamed(response: Any) -> Answer:
    """Server-sent events of an OpenAI-compatible server, up to [DONE].

    Tokens are counted by the server's own word (`usage`), else each event with text is one.
    """
    if not response.headers.get("content-type", "").startswith(STREAM):
        return _failed("the answer is no stream of events: " + await _quoted(response))
    first_s = last_s = math.nan
    events = tokens = size = 0
    async for data in _events(response):
        size += len(data)
        if size > MAX_ANSWER_BYTES:
            return _failed(f"the answer is above {MAX_ANSWER_BYTES} bytes")
        if data == DONE:
            if not events:
                return _failed("the stream had no token")
            return Answer(last_s, "", first_s, max(tokens, events) if tokens == 0 else tokens)
        text, told, error = read_event(data)
        if error:
            return _failed(error)
        tokens = told or tokens
        if text:
            last_s = time.monotonic()
            first_s = last_s if events == 0 else first_s
            events += 1
    return _failed("the stream broke off before [DONE]")


async def _events(response: Any) -> Any:
    """The data of every event; lines of other fields and comments are passed over."""
    rest = b""
    async for data in response.content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of the stream is above {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


def read_event(data: bytes) -> tuple[bool, int, str]:
    """Whether an event brings text, the number of tokens it tells (0: none), and an error."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return False, 0, f"an event is no JSON: {data[:MAX_QUOTED].decode(errors='replace')}"
    if not isinstance(event, Mapping):
        return False, 0, "an event is no JSON object"
    if event.get("error"):
        return False, 0, f"the stream says: {str(event['error'])[:MAX_QUOTED]}"
    usage, choices = event.get("usage"), event.get("choices")
    told = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    count = told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else 0
    has_text = any(_has_text(choice) for choice in choices) if isinstance(choices, list) else False
    return has_text, count, ""


def _has_text(choice: object) -> bool:
    if not isinstance(choice, Mapping):
        return False
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return bool(delta.get("content") or delta.get("reasoning_content"))
    return bool(choice.get("text"))
