"""One finding of `autotune doctor`: what was looked at, how it is, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A finding.

    Attributes:
        status: "skipped": it could not be looked at, which is no fault by itself.
        advice: What to do about it, empty if nothing is to be done.
        device: The device it is about, empty for the machine.
    """

    name: str
    status: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    advice: str = ""
    device: str = ""


def passed(name: str, detail: str) -> Check:
    """It is as it should be."""
    return Check(name=name, status="ok", detail=detail)


def warned(name: str, detail: str, advice: str) -> Check:
    """It works, and figures may suffer."""
    return Check(name=name, status="warning", detail=detail, advice=advice)


def failed(name: str, detail: str, advice: str) -> Check:
    """It does not work."""
    return Check(name=name, status="failed", detail=detail, advice=advice)


def skipped(name: str, detail: str) -> Check:
    """It could not be looked at."""
    return Check(name=name, status="skipped", detail=detail)
