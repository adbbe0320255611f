"""A small model behind HTTP: requests wait in one queue, workers take them in batches.

    python server.py --port 8000 --workers 2 --batch 8
    curl -d '{"x": 0.5}' http://127.0.0.1:8000/infer

The standard library and numpy are all it needs. `server.yaml` beside it tunes `--workers`,
`--batch` and `--delay-ms`.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import sys
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

WIDTH = 256
LAYERS = 8
ANSWER_LIMIT_S = 30.0
MAX_BODY_BYTES = 64 * 1024
MAX_WAITING = 10_000

Request = tuple[float, "Future[float]"]


class Model:
    """A few dense layers with random weights: a batch costs little more than a single item."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        shape = (LAYERS, WIDTH, WIDTH)
        self._layers = rng.standard_normal(shape, dtype=np.float32) / np.sqrt(WIDTH)

    def __call__(self, batch: list[float]) -> np.ndarray:
        hidden = np.outer(batch, np.ones(WIDTH)).astype(np.float32)
        for layer in self._layers:
            hidden = np.tanh(hidden @ layer)
        return hidden.mean(axis=1)


class Batcher:
    """Workers that take what waits, up to a batch, once its oldest request has waited enough."""

    def __init__(self, workers: int, batch: int, delay_s: float) -> None:
        self._queue: queue.Queue[Request] = queue.Queue(MAX_WAITING)
        self._batch, self._delay_s, self._model = batch, delay_s, Model()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, x: float) -> Future[float]:
        """The answer to come; raises `queue.Full` if too much is waiting."""
        answer: Future[float] = Future()
        self._queue.put_nowait((x, answer))
        return answer

    def _work(self) -> None:
        while True:
            taken = [self._queue.get()]
            until_s = time.monotonic() + self._delay_s
            while len(taken) < self._batch:
                try:
                    left_s = until_s - time.monotonic()
                    taken.append(self._queue.get(left_s > 0, max(left_s, 0) or None))
                except queue.Empty:
                    break
            outputs = self._model([x for x, _ in taken])
            for (_, answer), output in zip(taken, outputs, strict=True):
                answer.set_result(float(output))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024  # header and body leave together
    batcher: Batcher

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("content-length", "0"))
            x = float(json.loads(self.rfile.read(min(length, MAX_BODY_BYTES)))["x"])
            y = self.batcher.submit(x).result(ANSWER_LIMIT_S)
        except queue.Full:
            self._answer(503, {"error": "too many requests are waiting"})
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, {"error": str(error)})
        else:
            self._answer(200, {"y": y})

    def _answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    asked = parser.parse_args()
    Handler.batcher = Batcher(asked.workers, asked.batch, asked.delay_ms / 1000)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Server(("127.0.0.1", asked.port), Handler) as server:
        print(f"listening on {server.server_address}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
