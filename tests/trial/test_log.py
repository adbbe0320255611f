"""The end of what processes print."""

from __future__ import annotations

import os

from autotune.trial.log import TAIL_LINES, LogPipe


def test_torchs_table_of_kernels_does_not_push_out_the_last_words() -> None:
    table = "AutocastCPU: fallthrough registered at /pytorch/autocast.cpp:330 [backend fallback]\n"
    log = LogPipe()
    os.write(log.write_fd, f"NotImplementedError: Could not run 'x'\n{table * 60}".encode())
    os.write(log.write_fd, "\n".join(map(str, range(TAIL_LINES - 1))).encode())
    os.close(log.write_fd)
    log.close()
    assert log.tail.splitlines()[0].startswith("NotImplementedError")
