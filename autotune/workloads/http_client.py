"""A client over HTTP: sends a request, reads its answer, streamed ones token by token."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any

from autotune.core.errors import UnavailableError
from autotune.core.requests import Answer
from autotune.core.text import describe, keepable
from autotune.workloads.payloads import Payload

MAX_ANSWER_BYTES = 64 * 2**20
MAX_LINE_BYTES = 2**20  # of an event of a stream
MAX_TOKENS = 10**9  # of an answer
MAX_QUOTED = 100
DONE = b"[DONE]"
STREAM = "text/event-stream"
NO_JSON = "an event is no JSON"
BOM = b"\xef\xbb\xbf"
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
"""Of an event's `delta`: what a model may write."""

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")


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
    return Answer(time.monotonic(), " ".join(keepable(error).split()) or "unknown failure")


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
    if not response.headers.get("content-type", "").lower().startswith(STREAM):
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
            return Answer(last_s, "", first_s, tokens or events)
        text, told, error = read_event(data)
        if error:
            return _failed(error)
        tokens = told or tokens
        if text:
            last_s = time.monotonic()
            first_s = last_s if events == 0 else first_s
            events += 1
    return _failed("the stream broke off before [DONE]")


async def _events(response: Any) -> AsyncIterator[bytes]:
    """The data of every event; lines of other fields and comments are passed over."""
    reader = EventReader()
    async for data in response.content.iter_any():
        for event in reader.feed(data):
            yield event
    for event in reader.end():
        yield event


class EventReader:
    """Server-sent events out of the pieces in which they come.

    A line ends with any of the three ends of lines. Lines of data belong to one event up to an
    empty line; servers that leave that out are understood where a line is a whole by itself.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._skips_newline = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The events that this piece ends.

        Raises:
            ValueError: A line or an event is beyond `MAX_LINE_BYTES`.
        """
        if self._skips_newline:  # the second half of an end of line
            piece = piece.removeprefix(b"\n")
        self._skips_newline = piece.endswith(b"\r") or (self._skips_newline and not piece)
        *lines, self._rest = _END_OF_LINE.split(self._rest + piece)
        for line in lines:
            yield from self._line(line)
        if len(self._rest) + self._size > MAX_LINE_BYTES:
            raise ValueError(f"an event of the stream is above {MAX_LINE_BYTES} bytes")

    def end(self) -> Iterator[bytes]:
        """What the last piece left open."""
        yield from self._line(self._rest)
        yield from self._taken()

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            yield from self._taken()
        name, _, value = line.removeprefix(BOM).partition(b":")
        if name == b"data":
            value = value.strip()
            begins = value.startswith(b"{") or value == DONE
            if self._data and begins and _is_whole(b"\n".join(self._data)):
                yield from self._taken()
            self._data.append(value)
            self._size += len(value)

    def _taken(self) -> Iterator[bytes]:
        if self._data:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            yield data


def _is_whole(data: bytes) -> bool:
    return data == DONE or not read_event(data)[2].startswith(NO_JSON)


def read_event(data: bytes) -> tuple[bool, int, str]:
    """Whether an event brings text, the number of tokens it tells (0: none), and an error."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return False, 0, f"{NO_JSON}: {data[:MAX_QUOTED].decode(errors='replace')}"
    if not isinstance(event, Mapping):
        return False, 0, "an event is no JSON object"
    if event.get("error"):
        return False, 0, f"the stream says: {str(event['error'])[:MAX_QUOTED]}"
    usage, choices = event.get("usage"), event.get("choices")
    told = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    count = told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else 0
    if count > MAX_TOKENS:
        return False, 0, f"the stream tells of more than {MAX_TOKENS} tokens"
    has_text = any(_has_text(choice) for choice in choices) if isinstance(choices, list) else False
    return has_text, count, ""


def _has_text(choice: object) -> bool:
    if not isinstance(choice, Mapping):
        return False
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return any(delta.get(key) for key in TEXT_KEYS)
    return bool(choice.get("text"))
