"""A request to a server, as whoever sends it sees it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple


class Answer(NamedTuple):
    """How a request ended.

    Attributes:
        end_s: When its answer was complete, or it failed; on the monotonic clock.
        error: What came instead of an answer as it should be; empty for a good one.
        first_token_s: When the first token of a streamed answer came, else NaN.
        token_count: Tokens of a streamed answer.
    """

    end_s: float
    error: str = ""
    first_token_s: float = math.nan
    token_count: int = 0


Send = Callable[[int], Awaitable[Answer]]
"""Sends a request and waits for the answer; takes its number. Raises nothing of its own."""
