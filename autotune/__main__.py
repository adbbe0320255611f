"""The `autotune` command. A signal is seen to before anything that takes time is loaded."""

import os
import signal
import sys

INTERRUPTED = b"""{
 "schema": 1,
 "status": "undecided",
 "config": null,
 "complete": false,
 "stopped": "interrupted"
}
"""
"""What --json prints where a signal comes before there is a result."""


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, _leave)
    from autotune.cli import main as start

    start()


def _leave(_number: int, _frame: object) -> None:
    """End at once, by whatever import this strikes: nothing has been begun."""
    try:
        if "--json" in sys.argv:
            os.write(1, INTERRUPTED)
        os.write(2, b"autotune: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
