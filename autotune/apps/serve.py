"""`autotune serve`: running studies and verified figures, for Prometheus to collect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path

from autotune.apps.guarded_web import Environ, Gate, Listening, StartResponse, listen, new_token
from autotune.apps.history import read_history
from autotune.apps.store import load_result, load_stored
from autotune.core.errors import AutotuneError, UsageError
from autotune.results.metrics import (
    CONTENT_TYPE,
    Sample,
    Watched,
    gate_samples,
    render_metrics,
    study_samples,
)
from autotune.version import __version__

MAX_STUDIES = 200
"""Those that changed last."""

MAX_PAIRINGS = 50
LEAST_AGE_S = 5.0  # however often it is asked, what it says is looked up no more often
LEAST_TOKEN_CHARS = 16

_Stamp = tuple[tuple[str, int, int], ...]


class Metrics:
    """The text that is served; a study is read again when its files have changed."""

    def __init__(self, studies_dir: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._studies_dir, self._now_s = studies_dir, now_s
        self._lock = threading.Lock()
        self._text, self._made_s = "", float("-inf")
        self._known: dict[str, tuple[_Stamp, list[Sample]]] = {}

    def text(self) -> str:
        """All metrics; at most `LEAST_AGE_S` old."""
        with self._lock:
            if self._now_s() - self._made_s >= LEAST_AGE_S:
                self._text = render_metrics(self._samples())
                self._made_s = self._now_s()
            return self._text

    def _samples(self) -> Iterator[Sample]:
        yield "autotune_info", {"version": __version__}, 1.0
        found = _newest_first(self._studies_dir)
        left_out = len(found[MAX_STUDIES:])
        known: dict[str, tuple[_Stamp, list[Sample]]] = {}
        for directory in found[:MAX_STUDIES]:
            name, stamp = directory.name, _stamp(directory)
            old = self._known.get(name)
            # A database may change without a file here; a running trial may have died.
            if old is None or old[0] != stamp or _is_moving(directory, old[1]):
                try:
                    old = (stamp, list(_study(name, self._studies_dir)))
                except AutotuneError:
                    left_out += 1
                    continue
            known[name] = old
            yield from old[1]
        self._known = known
        yield "autotune_studies_left_out", {}, float(left_out)
        try:
            yield from gate_samples(read_history(self._studies_dir), MAX_PAIRINGS)
        except AutotuneError:
            return


def serve(
    *,
    studies_dir: Path = Path("studies"),
    host: str = "127.0.0.1",
    port: int = 9464,
    token_file: Path | None = None,
) -> Listening:
    """Set up a server for `/metrics` and `/grafana.json`.

    Args:
        host: On another address than this machine's own a token is needed.
        port: 0: any that is free.
        token_file: Holds the token; None: a new one where one is needed.
    Raises:
        UsageError: The address cannot be used, the token is too short, or there is no directory.
    """
    if not studies_dir.is_dir():
        raise UsageError(f"there is no directory {studies_dir}/; run a study first")
    token = _read_token(token_file) if token_file else new_token(host)
    metrics = Metrics(studies_dir)

    def application(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return _answer(start, CONTENT_TYPE, metrics.text())
        if path == "/grafana.json":
            return _answer(start, "application/json", grafana_dashboard())
        if path == "/":
            return _answer(start, "text/plain", "autotune: /metrics, /grafana.json\n")
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"there are /metrics and /grafana.json\n"]

    return listen(Gate(token=token).around(application), host, port, token=token, path="/metrics")


def grafana_dashboard() -> str:
    """The Grafana dashboard that ships, as JSON to import."""
    return (resources.files("autotune.results") / "grafana.json").read_text(encoding="utf-8")


def _study(name: str, studies_dir: Path) -> Iterator[Sample]:
    running = load_stored(name, studies_dir).running()
    yield from study_samples(Watched(result=load_result(name, studies_dir), running=running))


def _newest_first(studies_dir: Path) -> list[Path]:
    found = [path for path in studies_dir.iterdir() if path.is_dir() and path.name[0] != "."]
    return sorted(found, key=lambda path: (-_changed_ns(path), path.name))


def _changed_ns(directory: Path) -> int:
    return max((changed for _, changed, _ in _stamp(directory)), default=0)


def _stamp(directory: Path) -> _Stamp:
    """What changes whenever a study does: names, times and sizes of its files."""
    try:
        files = [(file.name, file.stat()) for file in directory.iterdir()]
    except OSError:  # it is being deleted
        return ()
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in files))


def _is_moving(directory: Path, samples: list[Sample]) -> bool:
    if (directory / "storage.txt").is_file():
        return True
    return any(name == "autotune_study_trials_running" and value for name, _, value in samples)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: it cannot be read ({error})") from None
    if len(token) < LEAST_TOKEN_CHARS or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"--token-file {path}: a token has at least {LEAST_TOKEN_CHARS} letters and digits"
        )
    return token


def _answer(start: StartResponse, kind: str, text: str) -> list[bytes]:
    body = text.encode()
    start("200 OK", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
