"""Build the stub CANN runtime against the headers of the torch_npu wheel of this interpreter.

    python tests/stub_cann/build.py OUT_DIR

Needs g++ and nm. What is already up to date is not built again.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNTIME = ("device", "memory", "stream", "graph_engine")
OTHER_NAMES = (
    "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb", "fmk_parser",
    "ascend_protobuf",
)  # fmt: skip
"""Libraries that the wheel is linked with beside libascendcl and that need only be there."""

FOREIGN = re.compile(
    r"(acl[A-Z]|acl(rt|op|mdl|prof|tdt|sys)|rt[A-Z]|Hccl|Msprof|_ZT?H?N3atb|_ZNK?(2ge|4gert))\w*"
    r"|(v?sn?printf|mem[a-z]+|str[a-z]+)_s"
)
"""Symbols that CANN is to provide."""


def main(out: Path) -> None:
    wheel = _wheel()
    sources = [*HERE.glob("*.cpp"), *HERE.glob("*.h"), Path(__file__), wheel / "version.py"]
    done = out / "done"
    if done.exists() and done.stat().st_mtime >= max(s.stat().st_mtime for s in sources):
        return
    out.mkdir(parents=True, exist_ok=True)
    include = ("-I", wheel / "include", "-I", HERE)
    flags = ("-std=c++17", "-O1", "-Wall", "-Wno-deprecated-declarations", "-fPIC")
    objects = [out / f"{name}.o" for name in RUNTIME]
    with ThreadPoolExecutor() as pool:  # each compiler is a process of its own
        sources = [HERE / f"{name}.cpp" for name in RUNTIME]
        compiled = [
            pool.submit(_run, "g++", *flags, *include, "-c", source, "-o", target)
            for source, target in zip(sources, objects, strict=True)
        ]
    for each in compiled:
        each.result()
    missing = out / "missing.c"
    names = sorted(_wanted(wheel) - _symbols("--defined-only", objects))
    lines = [f'int {name}(void) {{ return stub_missing("{name}"); }}' for name in names]
    missing.write_text("\n".join(["int stub_missing(const char *);", *lines, ""]))
    _run("gcc", "-fPIC", "-w", "-c", missing, "-o", out / "missing.o")
    _link(out, "ascendcl", "g++", "-shared", *objects, out / "missing.o", "-pthread")
    beside = ("-L", out, "-Wl,--no-as-needed", "-lascendcl", "-Wl,-rpath,$ORIGIN")
    for name in OTHER_NAMES:
        # Linked with the runtime, so that a look-up through any of them finds everything.
        _link(out, name, "gcc", "-shared", "-x", "c", "/dev/null", "-x", "none", *beside)
    _link(out, "opapi", "g++", "-shared", *flags, *include, HERE / "operators.cpp", *beside)
    done.touch()


def _wheel() -> Path:
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        raise SystemExit("torch_npu is not installed for this interpreter")
    return Path(spec.origin).parent


def _wanted(wheel: Path) -> set[str]:
    """What the wheel expects of CANN."""
    libraries = [*wheel.glob("lib/*.so"), *wheel.glob("_C*.so"), *wheel.glob("dynamo/**/*.so")]
    names = _symbols("--undefined-only", libraries, "-D")
    return {name for name in names if FOREIGN.fullmatch(name)}


def _symbols(which: str, files: Sequence[Path], *options: str) -> set[str]:
    listed = [_run("nm", *options, which, file) for file in files]
    lines = (line for text in listed for line in text.splitlines() if line.strip())
    return {line.split()[-1].partition("@")[0] for line in lines}


def _link(out: Path, name: str, *command: object) -> None:
    soname = f"lib{name}.so"
    _run(*command, f"-Wl,-soname,{soname}", "-o", out / soname)


def _run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
