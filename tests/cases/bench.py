"""A benchmark program for the tests, which behaves as its mode says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def main(mode: str, batch_size: int) -> None:
    figures = {"throughput": 100.0 * batch_size, "latency_p99_ms": 3.0}
    if mode == "killed" and batch_size == 4:
        os.kill(os.getpid(), signal.SIGSEGV)
    elif mode == "memory" and batch_size >= 4:
        sys.exit("RuntimeError: device is out of memory")
    elif mode == "import":
        sys.exit("ModuleNotFoundError: No module named 'mine'")
    elif mode == "allocate":
        sys.exit("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3.64 TiB")
    elif mode == "secret":
        sys.exit(f"no access with {os.environ['SOME_TOKEN']}")
    elif mode == "partial":
        del figures["latency_p99_ms"]
    elif mode == "nan" and batch_size == 4:
        figures["throughput"] = float("nan")
    elif mode == "negative" and batch_size == 4:
        figures["throughput"] = -5.0
    elif mode == "flood":
        for _ in range(20_000):
            print("x" * 100, file=sys.stderr if batch_size > 1 else sys.stdout)
    elif mode == "bytes":
        sys.stdout.buffer.write(b"\xcd\xcc\xff\n")
    elif mode == "stdin":
        sys.stdin.read()
    elif mode == "hang" and batch_size == 4:
        subprocess.Popen(["sleep", "601"])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif mode == "daemon":
        subprocess.Popen(["sleep", "602"])  # it keeps the pipes open
    elif mode == "locale":
        figures["throughput"] *= os.environ.get("LC_NUMERIC") == "C" and "LC_ALL" not in os.environ
    elif mode == "peak":
        rates = {1: 100.0, 2: 190.0, 4: 360.0, 8: 680.0, 16: 1200.0, 32: 1900.0, 64: 1200.0}
        figures = {"throughput": rates[batch_size], "latency_p99_ms": 2.0 * batch_size}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
