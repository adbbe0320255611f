from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def in_child() -> Callable[..., Any]:
    """Run code in a fresh interpreter, which may bind itself to cores, and return its `answer`."""

    def run(code: str, **environment: str) -> Any:
        script = textwrap.dedent(code) + "\nimport json; print('\\n' + json.dumps(answer))"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
