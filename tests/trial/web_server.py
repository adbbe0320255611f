"""A server for the tests, which behaves as its mode says; a request takes what it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE, PORT = sys.argv[1], int(sys.argv[2])
CALL_S = float(sys.argv[3]) if len(sys.argv) > 3 else 0.002
WORKERS = threading.Semaphore(int(sys.argv[4]) if len(sys.argv) > 4 else 4)
served = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024

    def do_GET(self) -> None:
        self.answer(200, b"{}")

    def do_POST(self) -> None:
        global served
        served += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if MODE == "fails" or (MODE == "sometimes" and served % 2):
            self.answer(500, b'{"error": "no memory left for this"}')
            return
        if MODE == "dies" and served == 20:
            print("CUDA error: an illegal memory access", file=sys.stderr, flush=True)
            os._exit(3)
        with WORKERS:
            if "stream" in MODE:
                self.stream(body)
            else:
                time.sleep(CALL_S)
                self.answer(200, json.dumps({"seen": self.headers.get("x-key", "")}).encode())

    def stream(self, body: dict[str, object]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        count = int(str(body["max_tokens"]))
        time.sleep(3 * CALL_S)
        for number in range(count):
            if number:
                time.sleep(CALL_S)
            choice = {"delta": {"content": "word "}}
            self.event(json.dumps({"choices": [choice]}))
            if MODE == "stream_breaks" and number == 1:
                self.close_connection = True
                return
        self.event(json.dumps({"choices": [], "usage": {"completion_tokens": count}}))
        self.event("[DONE]")
        self.close_connection = True

    def event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    print("starting", flush=True)
    if MODE == "broken":
        sys.exit("ModuleNotFoundError: No module named 'mine'")
    if MODE == "late":
        time.sleep(600)
    if MODE == "stubborn":  # what it starts leaves its session, and neither goes when asked
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(603)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    Server(("127.0.0.1", PORT), Handler).serve_forever()
