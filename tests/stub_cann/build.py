"""Build the stub CANN runtime against the headers of the torch_npu wheel of this interpreter.

    python tests/stub_cann/build.py OUT_DIR

Needs g++ and nm. What is already up to date is not built again.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNTIME = ("device.cpp", "memory.cpp", "stream.cpp")
OTHER_NAMES = ("hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb")
"""Libraries that the wheel is linked with beside libascendcl and that need only be there."""

FOREIGN = re.compile(r"(acl[A-Z]|acl(rt|op|mdl|prof|tdt|sys)|rt[A-Z]|Hccl|Msprof|_ZT?H?N3atb)\w*")
"""Symbols that CANN is to provide."""


def main(out: Path) -> None:
    wheel = _wheel()
    sources = [*HERE.glob("*.cpp"), *HERE.glob("*.h"), Path(__file__), wheel / "version.py"]
    done = out / "done"
    if done.exists() and done.stat().st_mtime >= max(s.stat().st_mtime for s in sources):
        return
    out.mkdir(parents=True, exist_ok=True)
    missing = out / "missing.c"
    names = sorted(_wanted(wheel) - _provided())
    lines = [f'int {name}(void) {{ return stub_missing("{name}"); }}' for name in names]
    missing.write_text("\n".join(["int stub_missing(const char *);", *lines, ""]))
    _run("gcc", "-shared", "-fPIC", "-w", "-c", missing, "-o", out / "missing.o")
    include = ("-I", wheel / "include", "-I", HERE)
    flags = ("-std=c++17", "-O1", "-Wall", "-Wno-deprecated-declarations", "-shared", "-fPIC")
    runtime = [HERE / name for name in RUNTIME]
    _link(out, "ascendcl", "g++", *flags, *include, *runtime, out / "missing.o", "-pthread")
    beside = ("-L", out, "-Wl,--no-as-needed", "-lascendcl", "-Wl,-rpath,$ORIGIN")
    for name in OTHER_NAMES:
        # Linked with the runtime, so that a look-up through any of them finds everything.
        _link(out, name, "gcc", "-shared", "-x", "c", "/dev/null", "-x", "none", *beside)
    _link(out, "opapi", "g++", *flags, *include, HERE / "operators.cpp", *beside)
    done.touch()


def _wheel() -> Path:
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        raise SystemExit("torch_npu is not installed for this interpreter")
    return Path(spec.origin).parent


def _wanted(wheel: Path) -> set[str]:
    libraries = [*wheel.glob("lib/*.so"), *wheel.glob("_C*.so")]
    listed = [_run("nm", "-D", "--undefined-only", library) for library in libraries]
    names = {line.split()[-1].partition("@")[0] for text in listed for line in text.splitlines()}
    return {name for name in names if FOREIGN.fullmatch(name)}


def _provided() -> set[str]:
    """What the sources here define, by how they are written."""
    text = "".join((HERE / name).read_text() for name in RUNTIME)
    return set(re.findall(r"^STUB_API [\w* ]*?\b(\w+)\(", text, re.MULTILINE))


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
