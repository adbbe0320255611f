"""Streams and answers of servers, in every form in which they may come."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from autotune.workloads import server
from autotune.workloads.http_client import MAX_LINE_BYTES, EventReader, read_event


def read(*pieces: bytes) -> list[bytes]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return [*events, *reader.end()]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_the_same_however_their_lines_end_and_wherever_they_are_cut(end: bytes) -> None:
    lines = [b"\xef\xbb\xbf: ping", b"id: 1", b"data: {", b'data:"a": 1}', b"", b"data:[DONE]", b""]
    stream = end.join([*lines, b""])
    expected = [b'{\n"a": 1}', b"[DONE]"]
    assert read(stream) == expected
    assert read(*(bytes([byte]) for byte in stream)) == expected


def test_an_event_is_there_as_soon_as_it_is_whole() -> None:
    reader = EventReader()
    assert list(reader.feed(b"data: 1\r\r")) == [b"1"]
    assert list(reader.feed(b"\ndata: 2\r\n\r")) == [b"2"]


def test_servers_that_leave_out_empty_lines_are_understood() -> None:
    assert read(b'data: {"a": 1}\ndata: {"a": 2}\ndata: [DONE]') == [
        b'{"a": 1}',
        b'{"a": 2}',
        b"[DONE]",
    ]


@pytest.mark.parametrize("piece", [b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_what_never_ends_is_refused(piece: bytes) -> None:
    reader = EventReader()
    with pytest.raises(ValueError, match="above"):
        for _ in range(MAX_LINE_BYTES // 900):
            list(reader.feed(piece))


@pytest.mark.parametrize(
    "key", ["content", "reasoning_content", "reasoning", "refusal", "tool_calls"]
)
def test_everything_that_a_model_writes_counts(key: str) -> None:
    event = {"choices": [{"delta": {key: "x"}}], "usage": {"completion_tokens": 3}}
    assert read_event(json.dumps(event).encode()) == (True, 3, "")


def test_a_server_cannot_tell_of_more_tokens_than_there_can_be() -> None:
    event = {"choices": [], "usage": {"completion_tokens": 10**30}}
    assert "tokens" in read_event(json.dumps(event).encode())[2]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 204 No Content\r\n", ""),
        (b"HTTP/1.0 503 Busy\r\n", "it answers 503"),
        (b"SSH-2.0\r\n", "its answer is no HTTP"),
        (b"", "its answer is no HTTP"),
        (b"HTTP/1.1 2", "timed out"),
    ],
)
def test_a_look_at_a_server_is_bounded_and_says_why(
    answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PROBE_LIMIT_S", 0.3)
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)
            # Byte after byte, each long before a limit on its own would be over.
            while answer and not answer.endswith(b"\n") and not done.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        assert server._not_ready("127.0.0.1", listener.getsockname()[1], "/health") == why
        done.set()
        thread.join()
