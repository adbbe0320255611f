"""What an exported program does when it is run: measure, answer a file, answer HTTP requests."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.server
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autotune.programs.instance import MAX_RING, Runtime, draw
from autotune.programs.memory import Array, Layout, Settings
from autotune.programs.server import CALL_LIMIT_S, Server, figures

MAX_BODY_BYTES = 64 * 2**20
MAX_NUMBER = 1e6  # of seconds, and of requests per second
MAX_ARRIVALS = 10_000_000


def at_rate(server: Server, settings: Settings, rate: float, seconds: float) -> dict[str, Any]:
    """Measure with requests of one item that arrive at random; latency from the due arrival on.

    Those due at the same moment are handed over together. This counts the queue and the copies
    into the instances' memory as well.
    """
    layout = Layout.of({**settings, "batch_size": 1, "micro_batch_count": 1})
    pool = draw(settings, layout, MAX_RING)
    wide = [
        [np.repeat(a, settings["batch_size"], f.axis) if f.axis is not None else common
         for a, common, f in zip(inputs, pool[0], layout.fields, strict=True)]
        for inputs in pool
    ]  # fmt: skip
    generator = random.Random(settings["seed"])
    due_s = list(_arrivals(generator, rate, seconds))
    ends_s = np.zeros(len(due_s))
    waiting: list[concurrent.futures.Future[list[Array]]] = []
    began_s, next_one = time.monotonic() + 0.1, 0
    while next_one < len(due_s):
        time.sleep(max(0.0, began_s + due_s[next_one] - time.monotonic()))
        now_s, first = time.monotonic() - began_s, next_one
        most = first + settings["batch_size"]
        while next_one < min(len(due_s), most) and due_s[next_one] <= now_s:
            next_one += 1
        count = next_one - first
        inputs = {
            f.name: f.part(a, 0, count)
            for f, a in zip(layout.fields, wide[first % len(wide)], strict=True)
        }
        waiting.append(server.submit(inputs))
        waiting[-1].add_done_callback(_note_end(ends_s, first, next_one, began_s))
    concurrent.futures.wait(waiting, CALL_LIMIT_S)
    for future in waiting:
        future.result(0)
    latency_s = np.sort(ends_s - np.array(due_s))
    return {**figures(len(due_s) / (ends_s.max() - due_s[0]), latency_s, seconds), "rate": rate}


def _note_end(ends_s: Array, first: int, end: int, began_s: float) -> Any:
    def note(_future: object) -> None:
        ends_s[first:end] = time.monotonic() - began_s

    return note


def _arrivals(generator: random.Random, rate: float, seconds: float) -> Iterator[float]:
    at_s = generator.expovariate(rate)
    while at_s < seconds:
        yield at_s
        at_s += generator.expovariate(rate)


def web(server: Server, host: str, port: int) -> http.server.ThreadingHTTPServer:
    """POST {"input": rows, ...} gives {"outputs": [rows, ...]}; GET says that it is alive."""

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            self._say(*((503, {"status": "ended"}) if server.closed else (200, {"status": "ok"})))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
                self._say(413, {"error": f"at most {MAX_BODY_BYTES} bytes, their number said"})
                return
            try:
                inputs = json.loads(self.rfile.read(int(length)))
                if not isinstance(inputs, dict):
                    raise TypeError("the inputs are wanted by name, in one JSON object")
                outputs = server.submit(inputs).result()
            except (ValueError, TypeError) as error:
                self._say(400, {"error": str(error)})
            except OverflowError as error:
                self._say(503, {"error": str(error)})
            except (RuntimeError, concurrent.futures.CancelledError) as error:
                self._say(500, {"error": str(error) or "the server was closed"})
            else:
                self._say(200, {"outputs": [tensor.tolist() for tensor in outputs]})

        def _say(self, status: int, content: dict[str, Any]) -> None:
            try:
                body = json.dumps(content, allow_nan=False).encode()
            except ValueError:
                status, body = 500, b'{"error": "an output is not a finite number"}'
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing per request."""

    class Listening(http.server.ThreadingHTTPServer):
        request_queue_size = 128  # clients that connect at the same moment

        def service_actions(self) -> None:
            if server.closed:  # whoever runs this starts it again
                raise RuntimeError("an instance has ended; its output says why")

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # the client is gone
                super().handle_error(request, client_address)

    return Listening((host, port), Handler)


def answer_file(server: Server, source: Path, target: Path) -> None:
    """Run the items of an .npz file, one array per input, and write output_0, output_1, …"""
    with np.load(source) as arrays:
        outputs = server.answer({name: arrays[name] for name in arrays.files})
    np.savez(target, **{f"output_{i}": array for i, array in enumerate(outputs)})  # type: ignore[arg-type]


def main(make: type[Runtime], settings: Settings) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=f"{settings['study']}: see the head of this file")
    parser.add_argument("--bench", type=number, metavar="SECONDS", help="measure, print JSON")
    parser.add_argument("--rate", type=number, help="with --bench: requests that arrive, per s")
    parser.add_argument("--infer", nargs=2, type=Path, metavar=("IN.npz", "OUT.npz"))
    parser.add_argument("--serve", type=port, metavar="PORT", help="answer HTTP requests")
    parser.add_argument("--host", default="127.0.0.1", help="for --serve; who asks is not checked")
    asked = parser.parse_args()
    if (asked.bench, asked.infer, asked.serve) == (None, None, None):
        parser.error("say --bench, --infer or --serve")
    if (asked.bench or 0) * (asked.rate or 0) > MAX_ARRIVALS:
        parser.error(f"--rate: more than {MAX_ARRIVALS} requests in all")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # in a container nobody else would
    if settings["instance_mode"] == "thread":
        with_environment(settings["environment"])
    try:
        do(make, settings, asked)
    except (RuntimeError, OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    return 0


def number(text: str) -> float:
    """A number above 0 on the command line."""
    value = float(text)
    if not 0 < value <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {MAX_NUMBER:.0f}")
    return value


def port(text: str) -> int:
    """A port on the command line; 0 is any that is free."""
    value = int(text)
    if not 0 <= value < 2**16:
        raise argparse.ArgumentTypeError(f"{text} is no port; they go from 0 to {2**16 - 1}")
    return value


def with_environment(wanted: dict[str, str]) -> None:
    """Start this process anew, unless it has the variables that libraries read as they load."""
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def do(make: type[Runtime], settings: Settings, asked: argparse.Namespace) -> None:
    """What was asked for on the command line."""
    with Server(make, settings) as server:
        if asked.infer:
            answer_file(server, *asked.infer)
        if asked.bench:
            found = (
                at_rate(server, settings, asked.rate, asked.bench)
                if asked.rate
                else server.back_to_back(asked.bench)
            )
            print(json.dumps(found))
        if asked.serve is not None:
            answering = web(server, asked.host, asked.serve)
            print(f"http://{asked.host}:{answering.server_port}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                answering.serve_forever()
