"""A gate in front of a web application that has none: who may ask, and for what.

The application behind it is served from one process on this machine. A browser may be led to it by
other sites: their requests carry another Host or Origin, and are refused.
"""

from __future__ import annotations

import hmac
import secrets
import socketserver
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from autotune.core.errors import UsageError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
TOKEN_BYTES = 24
BEARER = "Bearer "
COOKIE = "autotune_token"
MAX_BODY_BYTES = 2**20
IDLE_S = 30.0  # a connection that says nothing for this long is closed

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What may pass.

    Attributes:
        token: Who asks must know it; empty: anyone on this machine may ask.
        may_change: Whether requests that delete, rename or make something may pass.
    """

    token: str = ""
    may_change: bool = False

    def around(self, inner: Application) -> Application:
        """The application with this gate in front."""

        def outer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            refused = self._refusal(environ)
            if refused:
                return _answer(start, *refused)
            if self.token and "token" in parse_qs(environ.get("QUERY_STRING", "")):
                # The address with the token in it is not to stay in the browser's history.
                cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                place = environ.get("PATH_INFO") or "/"
                return _answer(start, "302 Found", "", ("Location", place), ("Set-Cookie", cookie))
            return inner(environ, start)

        return outer

    def _refusal(self, environ: Environ) -> tuple[str, str] | None:
        if not self.token and _name(environ.get("HTTP_HOST", "")) not in LOOPBACK:
            return "403 Forbidden", "this server answers under localhost only"
        origin = environ.get("HTTP_ORIGIN")
        if origin and urlsplit(origin).netloc != environ.get("HTTP_HOST"):
            return "403 Forbidden", "requests from other sites are refused"
        if self.token and not self._knows_token(environ):
            return "401 Unauthorized", "open the address that was printed, token included"
        if not _is_length_allowed(environ):
            return "413 Content Too Large", f"at most {MAX_BODY_BYTES} bytes"
        if not self.may_change and not _is_harmless(environ):
            return "403 Forbidden", "studies are not changed from here (--allow-changes)"
        return None

    def _knows_token(self, environ: Environ) -> bool:
        given = parse_qs(environ.get("QUERY_STRING", "")).get("token", [])
        try:
            cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(COOKIE)
        except CookieError:
            cookie = None
        header = environ.get("HTTP_AUTHORIZATION", "")
        bearer = [header.removeprefix(BEARER)] if header.startswith(BEARER) else []
        offered = [*given, *bearer, *([cookie.value] if cookie else [])]
        return any(hmac.compare_digest(o.encode(), self.token.encode()) for o in offered)


def _name(host: str) -> str:
    """The name in a Host header, its port and brackets left out."""
    return urlsplit(f"//{host}").hostname or ""


def _is_length_allowed(environ: Environ) -> bool:
    length = environ.get("CONTENT_LENGTH") or "0"
    return length.isdecimal() and int(length) <= MAX_BODY_BYTES


def _is_harmless(environ: Environ) -> bool:
    """Reading, and writing a note."""
    method, path = environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", "").rstrip("/")
    return method in ("GET", "HEAD") or (method == "PUT" and path.endswith("/note"))


def _answer(start: StartResponse, status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [f"{text}\n".encode()] if text else []


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal shows what the user asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A server that is ready.

    Attributes:
        url: To open in a browser, the token included.
    """

    server: WSGIServer
    url: str

    def serve(self) -> None:
        """Answer until interrupted."""
        try:
            self.server.serve_forever()
        finally:
            self.server.server_close()


def new_token(host: str) -> str:
    """A token for who asks from elsewhere, empty where only this machine can ask."""
    return "" if host in LOOPBACK else secrets.token_urlsafe(TOKEN_BYTES)


def listen(
    application: Application, host: str, port: int, *, token: str = "", path: str = "/"
) -> Listening:
    """A server for an application behind its gate, a thread per request.

    Args:
        port: 0: any that is free.
        path: What its address leads to.
    Raises:
        UsageError: The address cannot be listened on.
    """
    try:
        server = make_server(host, port, application, server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error}; choose another --port"
        ) from None
    place = f"[{host}]" if ":" in host else host
    query = f"?token={token}" if token else ""
    return Listening(server=server, url=f"http://{place}:{server.server_port}{path}{query}")
