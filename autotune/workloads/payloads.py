"""What is sent to a server: one body, the lines of a file, or generated prompts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.errors import UsageError
from autotune.core.records import Lengths, Scalar
from autotune.space.command import fill

MAX_FILE_BYTES = 64 * 2**20
MAX_LINES = 100_000
RING = 1000  # generated prompts, taken in turns
MAX_PROMPT_WORDS = 200_000
WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "it", "for", "was", "on", "are", "as", "with",
    "they", "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not",
    "what", "all", "were", "we", "when", "your", "can", "said", "there", "use", "an", "each",
    "which", "she", "do", "how", "their", "if",
)  # fmt: skip
"""Short common words, each of which most vocabularies have as one token."""

Payload = Callable[[int], bytes]
"""The body of a request by its number."""


def payloads(request: Mapping[str, Any], values: Mapping[str, Scalar], seed: int) -> Payload:
    """The bodies that a workload's `request` describes.

    Args:
        values: What placeholders in a body stand for; `{number}` is the request's own.
    Raises:
        UsageError: A file is not what it should be.
    """
    if "openai" in request:
        bodies = _openai(request["openai"], str(request["path"]), seed)
    elif "file" in request:
        bodies = [line.encode() for line in read_lines(request["file"], "request.file")]
    elif "body" in request:
        return lambda number: fill([request["body"]], {**values, "number": number})[0].encode()
    else:
        return lambda number: b""
    return lambda number: bodies[number % len(bodies)]


def read_lines(path: str, key: str) -> list[str]:
    """The lines of a file that are not empty.

    Raises:
        UsageError: There are none, or too many, or it is no UTF-8 text.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"workload.server.{key}: {path} is above {MAX_FILE_BYTES} bytes")
        lines = [line for line in data.decode("utf-8-sig").split("\n") if line.strip()]
    except OSError as error:
        raise UsageError(f"workload.server.{key}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"workload.server.{key}: {path} is not UTF-8 text") from None
    if not 1 <= len(lines) <= MAX_LINES:
        raise UsageError(
            f"workload.server.{key}: {path} has {len(lines)} lines; give 1 to {MAX_LINES}"
        )
    return lines


def headers_of(request: Mapping[str, Any]) -> dict[str, str]:
    """The headers, `${NAME}` in their values replaced from the environment.

    Raises:
        UsageError: There is no such variable.
    """

    def value(match: re.Match[str]) -> str:
        if match.group(1) not in os.environ:
            raise UsageError(
                f"workload.server.request.headers: the environment has no {match.group(1)}"
            )
        return os.environ[match.group(1)]

    headers = {
        name: re.sub(r"\$\{([A-Za-z_]\w*)\}", value, text)
        for name, text in dict(request["headers"]).items()
    }
    is_json = "openai" in request or "file" in request or "body" in request
    return {"content-type": "application/json"} | headers if is_json else headers


def _openai(wanted: Mapping[str, Any], path: str, seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    if "prompts" in wanted:
        prompts = read_lines(wanted["prompts"], "request.openai.prompts")
        count = max(RING, len(prompts))
    else:
        count = RING
        prompts = [_words(rng, length) for length in _drawn(wanted["prompt_tokens"], rng, count)]
    lengths = _drawn(wanted["output_tokens"], rng, count)
    is_chat = path.endswith("/chat/completions")
    bodies = []
    for index, most in enumerate(lengths):
        prompt = prompts[index % len(prompts)]
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            "model": wanted["model"],
            **(asked if is_chat else {"prompt": prompt}),
            "max_tokens": most,
            "stream": True,
            "stream_options": {"include_usage": True},
            **dict(wanted.get("options", {})),
        }
        bodies.append(json.dumps(body).encode())
    return bodies


def _drawn(plain: Mapping[str, Any], rng: np.random.Generator, count: int) -> list[int]:
    lengths = Lengths(**{**plain, "values": tuple(plain["values"])})
    values = lengths.values or np.arange(lengths.low, lengths.high + 1)
    return [lengths.padded(int(length)) for length in rng.choice(values, count)]


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(WORDS, min(count, MAX_PROMPT_WORDS)).tolist())
