"""The `autotune` command. A signal is seen to before anything that takes time is loaded."""

import os
import signal


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    from autotune.cli import main as start

    start()


def _leave(_number: int, _frame: object) -> None:
    """End at once, by whatever import this strikes: nothing has been begun."""
    try:
        os.write(2, b"autotune: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
