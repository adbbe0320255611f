"""From `workload.server` to what starts a server and says what is sent to it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune.core.records import Lengths, WorkloadSpec
from autotune.space import reading
from autotune.space.parameters import Refused
from autotune.space.schema import RequestSection, ServerSection, StreamSection
from autotune.space.strict_yaml import Node, shown

CHAT_PATH = "/v1/chat/completions"
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def server(section: ServerSection, base_dir: Path) -> WorkloadSpec:
    """The workload that a server is."""
    options: dict[str, object] = {
        "command": reading.words(section.command, key="server.command"),
        "url": _url(section.url),
        "ready": _path(section.ready, "ready") if section.ready is not None else "",
        "start_timeout_s": section.start_timeout,
        "stop_timeout_s": section.stop_timeout,
        "request": _request(section.request, base_dir),
    }
    return WorkloadSpec(kind="server", options=options, base_dir=str(base_dir))


def _url(text: str) -> str:
    parts = urlsplit(text.replace("{port}", "1"))
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None:
        raise Refused(
            f"'{shown(text)}' is not http://host:port; {{port}} stands for a free one",
            *("server", "url"),
        )
    if parts.username or parts.password or parts.path.strip("/") or parts.query:
        raise Refused(
            f"'{shown(text)}' has more than host and port; a path belongs to request, a secret to "
            "a header as ${NAME}",
            *("server", "url"),
        )
    return text.rstrip("/")


def _path(text: str, *keys: str) -> str:
    if not text.startswith("/") or any(ord(c) <= 32 or ord(c) == 127 for c in text):
        raise Refused(f"'{shown(text)}' is no path such as /health", "server", *keys)
    return text


def _request(section: RequestSection, base_dir: Path) -> dict[str, Any]:
    given = [name for name in ("body", "file", "openai") if getattr(section, name) is not None]
    if len(given) > 1:
        raise Refused(f"{given[0]} and {given[1]} exclude each other", "server", "request")
    if section.openai is not None and section.method not in (None, "POST"):
        raise Refused("openai requests are POST", "server", "request", "method")
    path = section.path or (CHAT_PATH if section.openai is not None else "/")
    request: dict[str, Any] = {
        "path": _path(path, "request", "path"),
        "method": section.method or ("POST" if given else "GET"),
        "headers": _headers(section.headers),
        "timeout_s": section.timeout,
    }
    if section.body is not None:
        request["body"] = section.body
    if section.file is not None:
        keys = ("server", "request", "file")
        request["file"] = reading.existing(section.file, base_dir, *keys)
    if section.openai is not None:
        request["openai"] = _openai(section.openai, base_dir)
    return request


def _headers(node: Node | None) -> dict[str, str]:
    if node is None:
        return {}
    keys = ("server", "request", "headers")
    headers = {}
    for name, item in reading.mapping_at(node, *keys).items():
        value = reading.text_at(item, *keys, name)
        if not _HEADER.fullmatch(name):
            raise Refused(f"'{shown(name)}' is no name of a header", *keys, name)
        if not value.isprintable():
            raise Refused("a header's value is one line of text", *keys, name)
        headers[name.lower()] = value
    return headers


def _openai(section: StreamSection, base_dir: Path) -> dict[str, Any]:
    keys = ("server", "request", "openai")
    if (section.prompts is None) == (section.prompt_tokens is None):
        raise Refused("give either prompt_tokens or prompts, a file of them", *keys)
    wanted: dict[str, Any] = {
        "model": section.model,
        "output_tokens": _tokens(section.output_tokens, *keys, "output_tokens"),
    }
    if section.prompts is not None:
        wanted["prompts"] = reading.existing(section.prompts, base_dir, *keys, "prompts")
    if section.prompt_tokens is not None:
        wanted["prompt_tokens"] = _tokens(section.prompt_tokens, *keys, "prompt_tokens")
    if section.options is not None:
        wanted["options"] = reading.free_values(section.options, *keys, "options")
    return wanted


def _tokens(node: Node, *keys: str) -> dict[str, Any]:
    """One number, a list of lengths to draw from, or {low, high}."""
    if isinstance(node.value, str):
        (count,) = reading.whole_numbers([node], *keys)
        return asdict(Lengths(values=(count,)))
    return asdict(reading.lengths(node, *keys))
