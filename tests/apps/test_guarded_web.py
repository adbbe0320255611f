"""The gate in front of the dashboard: who may ask, and for what."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

import pytest

from autotune.apps.guarded_web import COOKIE, Gate, listen
from autotune.core.errors import UsageError

OPEN = Gate()
LOCKED = Gate(token="s3cret")


def inner(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    start("200 OK", [])
    return [b"inside"]


def ask(gate: Gate, method: str = "GET", path: str = "/api/studies", **environ: str) -> Any:
    answered: dict[str, Any] = {}

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        answered.update(status=int(status.split()[0]), headers=dict(headers))

    asked = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": "localhost:8080", **environ}
    answered["body"] = b"".join(gate.around(inner)(asked, start))
    return answered


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
def test_on_this_machine_anyone_may_read(host: str) -> None:
    assert ask(OPEN, HTTP_HOST=host)["body"] == b"inside"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "192.168.0.7:8080"])
def test_under_another_name_nobody_may(host: str) -> None:
    assert ask(OPEN, HTTP_HOST=host)["status"] == 403


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_sites_may_not(method: str) -> None:
    found = ask(OPEN, method, "/api/studies/0/note", HTTP_ORIGIN="http://evil.example")
    assert found["status"] == 403
    own = ask(OPEN, "PUT", "/api/studies/0/note", HTTP_ORIGIN="http://localhost:8080")
    assert own["status"] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/studies/0"),
        ("POST", "/api/studies"),
        ("POST", "/api/studies/0/rename"),
        ("PUT", "/api/studies/0/other"),
        ("PATCH", "/api/studies/0/note"),
    ],
)
def test_nothing_is_changed_unless_allowed(method: str, path: str) -> None:
    assert ask(OPEN, method, path)["status"] == 403
    allowed = Gate(may_change=True)
    assert ask(allowed, method, path)["status"] == 200


def test_on_another_address_the_token_is_needed() -> None:
    assert ask(LOCKED, HTTP_HOST="10.0.0.1:8080")["status"] == 401
    assert ask(LOCKED, QUERY_STRING="token=wrong")["status"] == 401
    assert ask(LOCKED, HTTP_COOKIE=f"{COOKIE}=wrong")["status"] == 401
    assert ask(LOCKED, HTTP_COOKIE="=;;\x00 bad")["status"] == 401


def test_the_token_moves_from_the_address_into_a_cookie() -> None:
    found = ask(LOCKED, path="/dashboard", QUERY_STRING="token=s3cret", HTTP_HOST="10.0.0.1:8080")
    assert found["status"] == 302 and found["headers"]["Location"] == "/dashboard"
    cookie = found["headers"]["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    again = ask(LOCKED, HTTP_HOST="10.0.0.1:8080", HTTP_COOKIE=cookie.partition(";")[0])
    assert again["body"] == b"inside"


@pytest.mark.parametrize("length", ["99999999999", "-1", "x"])
def test_bodies_are_bounded(length: str) -> None:
    assert ask(OPEN, "PUT", "/api/studies/0/note", CONTENT_LENGTH=length)["status"] == 413


def test_a_port_that_is_taken_or_impossible_is_named_with_what_to_change() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for wrong, host in ((port, "127.0.0.1"), (70000, "127.0.0.1"), (0, "no.such.host.invalid")):
            with pytest.raises(UsageError, match=rf"listen on {host}:{wrong}: .*another --port"):
                listen(OPEN.around(inner), host, wrong)
    free = listen(OPEN.around(inner), "127.0.0.1", 0)
    free.server.server_close()
    assert free.url.startswith("http://127.0.0.1:")
