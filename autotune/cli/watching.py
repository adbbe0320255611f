"""Commands that look: diagnose, dashboard, serve, doctor; and a single rank."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from autotune.cli.application import (
    AsJson,
    Overrides,
    Space,
    Storage,
    StudiesDir,
    command,
)
from autotune.cli.output import print_found, print_json, view_for
from autotune.cli.process import EXIT_INTERRUPTED, EXIT_OK


@command(closed_pipe=EXIT_INTERRUPTED)
def diagnose(
    study: Annotated[
        str,
        typer.Argument(metavar="[STUDY]", help="A study, or STUDY#12, STUDY#batch_size=64."),
    ] = "",
    space: Annotated[str, typer.Option(help="Space file: the configuration that it fixes.")] = "",
    overrides: Overrides = None,
    profile: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time, on 3.10 too
        typer.Option(help="A profiler's directory or file: torch_npu, msprof, torch.profiler."),
    ] = None,
    calls: Annotated[
        int, typer.Option(min=0, help="Calls in it, where the profiler did not mark them.")
    ] = 0,
    check: Annotated[
        bool, typer.Option(help="Try what is forecast, where no trial shows it.")
    ] = True,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
    as_json: AsJson = False,
) -> int:
    """Where the time goes, which knob is next, and whether that was right."""
    from autotune.apps.diagnose import diagnose_profile, diagnose_space, diagnose_study
    from autotune.core.errors import UsageError
    from autotune.space.loader import load_space

    if sum((bool(study), bool(space), profile is not None)) != 1:
        raise UsageError("diagnose a STUDY, or --space FILE, or --profile DIR: one of them")
    if overrides and not space:
        raise UsageError("--set is for --space; of a study, say STUDY#batch_size=64")
    if profile is not None:
        found = diagnose_profile(profile, call_count=calls or None)
    else:
        with view_for(as_json) as view:
            if space:
                found = diagnose_space(load_space(space, overrides or ()), view=view, check=check)
            else:
                found = diagnose_study(
                    study, studies_dir=studies_dir, storage=storage, view=view, check=check
                )
    print_found(as_json, found.to_json, found.lines)
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def dashboard(
    study: Annotated[
        str, typer.Argument(metavar="[STUDY]", help="The study's name; the latest if left out.")
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than this machine's needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8080,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let it delete, rename and make studies.")
    ] = False,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
) -> int:
    """Review a study in optuna-dashboard, on this machine only unless asked."""
    from autotune.apps.dashboard import dashboard as prepare

    ready = prepare(
        study,
        studies_dir=studies_dir,
        storage=storage,
        host=host,
        port=port,
        may_change=allow_changes,
    )
    print(f"open {ready.url} (Ctrl-C ends it)", flush=True)
    ready.serve()
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than this machine's needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 9464,
    token_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Holds the token; else a new one is made where it is needed."),
    ] = None,
    studies_dir: StudiesDir = Path("studies"),
) -> int:
    """Serve running studies and verified figures as Prometheus metrics, here only unless asked."""
    from autotune.apps.serve import serve as prepare

    ready = prepare(studies_dir=studies_dir, host=host, port=port, token_file=token_file)
    print(f"metrics at {ready.url} (Ctrl-C ends it)", flush=True)
    ready.serve()
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def rank(space: Space, overrides: Overrides = None) -> int:
    """Be one rank of a pipeline that torchrun starts; rank 0 prints figures as one JSON line."""
    from autotune.apps.rank import reported, run_rank
    from autotune.space.loader import load_space

    found = run_rank(load_space(space, list(overrides or ())), os.environ)
    if found is not None:
        print(json.dumps(reported(found)), flush=True)
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def doctor(
    device: Annotated[
        str, typer.Option(help="Try this device as well, such as npu:0; all: every one.")
    ] = "",
    ranks: Annotated[
        int,
        typer.Option(
            min=0, max=64, help="Let so many ranks work together, on --device npu:0-3 or the CPU."
        ),
    ] = 0,
    as_json: AsJson = False,
) -> int:
    """Devices of this machine, what is wrong with them, and versions.

    Exit status 3: a device that was to be tried is not there, or failed.
    """
    from autotune.apps.doctor import doctor as look
    from autotune.core.errors import UnavailableError

    found = look(device, ranks) if device or ranks else look()
    code = EXIT_OK if found.is_usable else UnavailableError.exit_code
    if as_json:
        print_json(found.to_json())
        return code
    for discovery in found.devices:
        for info in discovery.devices:
            print(f"{info.name:<12} {info.description}")
        if not discovery.devices:
            print(f"{discovery.kind:<12} not usable: {discovery.why_not}")
    for check in found.checks:
        where = f"{check.device} " if check.device else ""
        print(f"{check.status:<12} {where}{check.name}: {check.detail}")
        if check.advice:
            print(f"{'':<12}   {check.advice}")
    for name, text in {**found.versions, "system": found.system}.items():
        print(f"{name:<12} {text or 'not installed'}")
    return code
