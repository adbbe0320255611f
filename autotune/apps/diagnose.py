"""`autotune diagnose`: where the time of a profile goes, and which knob is next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.core.codec import to_json_dict
from autotune.core.diagnosis import Breakdown
from autotune.core.errors import UsageError
from autotune.core.units import format_duration
from autotune.measure.breakdown import break_down
from autotune.measure.profile_files import read_profile
from autotune.results.bottleneck import Bottleneck, find_bottleneck

SHOWN_KERNELS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDiagnosis:
    """A profile read and judged."""

    breakdown: Breakdown
    bottleneck: Bottleneck
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `diagnose --json` prints it."""
        breakdown = to_json_dict(self.breakdown)
        breakdown["utilisation"] = self.breakdown.utilisation
        breakdown["h2d_share"] = self.breakdown.share(self.breakdown.h2d_s)
        breakdown["h2d_copies_per_call"] = self.breakdown.h2d_copies_per_call
        return {
            "schema": 1,
            "bottleneck": to_json_dict(self.bottleneck),
            "breakdown": breakdown,
            "files": list(self.files),
        }

    def lines(self) -> list[str]:
        """For a terminal."""
        top = [
            f"  {kernel.share:6.1%}  {format_duration(kernel.total_s):>9}  "
            f"{f'{kernel.count:,} ×' if kernel.count else '':>9}  {kernel.name}"
            for kernel in self.breakdown.kernels[:SHOWN_KERNELS]
        ]
        return [
            *self.bottleneck.sentences,
            *(["", "Most time in:", *top] if top else []),
            "",
            *(f"read {file}" for file in self.files),
        ]


def diagnose_profile(path: Path, *, call_count: int | None = None) -> ProfileDiagnosis:
    """Read a profiler's files and say where the time goes.

    Args:
        path: A directory, searched with all below it, or one file.
        call_count: Calls in it, where the profiler did not mark them.
    Raises:
        UsageError: There is no profile that is known.
    """
    profile = read_profile(path)
    breakdown = break_down(profile, call_count=call_count)
    if not breakdown.span_s:
        raise UsageError(
            f"{path}: it tells only what the host did; record it with the device's activities"
        )
    return ProfileDiagnosis(
        breakdown=breakdown, bottleneck=find_bottleneck(breakdown), files=profile.files
    )
