"""Commands for what follows a study: export, buckets, plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from autotune.cli.application import (
    AsJson,
    Name,
    Storage,
    StudiesDir,
    command,
)
from autotune.cli.output import print_found, print_lines, view_for
from autotune.cli.process import EXIT_NOTHING, EXIT_OK


@command(closed_pipe=EXIT_OK)
def export(
    to: Annotated[
        str,
        typer.Option(help="triton, onnxruntime, openvino, torch, torch_npu, onnx, env or json."),
    ],
    study: Annotated[str, typer.Argument(metavar="[STUDY]", help="The study's name.")] = "",
    space: Annotated[str, typer.Option(help="A space file instead of a study.")] = "",
    out: Annotated[Optional[Path], typer.Option(help="The directory to write into.")] = None,  # noqa: UP045
    unproven: Annotated[
        bool, typer.Option("--unproven", help="Export what is not proven; the files say so.")
    ] = False,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
) -> int:
    """Write what a study found, or its model, for other programs; prints the files."""
    from autotune.apps.export import export_space, export_study
    from autotune.core.errors import UsageError

    if bool(study) == bool(space):
        raise UsageError("give the name of a study, or --space FILE")
    if space:
        written = export_space(space, to, out=out)
    else:
        written = export_study(
            study, to, out=out, studies_dir=studies_dir, storage=storage, unproven=unproven
        )
    print_lines(str(path) for path in written)
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def buckets(
    lengths: Annotated[Path, typer.Argument(help="CSV: length and perhaps count.")],
    max_buckets: Annotated[int, typer.Option(help="At most so many.")] = 8,
    multiple_of: Annotated[int, typer.Option(help="Sizes are multiples of this.")] = 1,
    cost: Annotated[
        str, typer.Option(help="linear, quadratic, or a CSV of seconds per item by length.")
    ] = "linear",
    item_time: Annotated[str, typer.Option(help="Of an item of the greatest length.")] = "",
    compile_time: Annotated[str, typer.Option(help="Of one bucket.")] = "",
    items: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Items served per compilation; the file's own number if left out."),
    ] = None,
    memory: Annotated[str, typer.Option(help="Of a bucket, such as 200MiB.")] = "",
    memory_per_size: Annotated[str, typer.Option(help="What each unit of size adds.")] = "",
    memory_limit: Annotated[str, typer.Option(help="For all buckets together.")] = "",
    as_json: AsJson = False,
) -> int:
    """Which sequence lengths or image sizes to compile for: the cheapest set of buckets."""
    from autotune.apps.buckets import Ask
    from autotune.apps.buckets import buckets as choose

    found = choose(
        lengths,
        max_buckets,
        Ask(
            multiple_of=multiple_of,
            cost=cost,
            item_time=item_time,
            compile_time=compile_time,
            item_count=items,
            memory=memory,
            memory_per_size=memory_per_size,
            memory_limit=memory_limit,
        ),
    )
    print_found(as_json, found.to_json, found.lines)
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def plan(
    study: Name,
    rate: Annotated[str, typer.Option(help="Requests of all devices together: 50000 or 50000/s.")],
    limits: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--limit", help="Instead of the study's: latency_p99=5ms …"),
    ] = None,
    headroom: Annotated[str, typer.Option(help="Share of the capacity that stays free.")] = "30%",
    price_per_hour: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Of one device, in any currency."),
    ] = None,
    power: Annotated[str, typer.Option(help="Of one device, 300W; else as measured.")] = "",
    per_machine: Annotated[
        int, typer.Option(min=0, help="Devices that share a machine; 0: all of them.")
    ] = 0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Measure what the plan rests on.")
    ] = False,
    time: Annotated[str, typer.Option(help="Most time to measure, such as 10min.")] = "",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Write the load table as JSON, for a server."),
    ] = None,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
    as_json: AsJson = False,
) -> int:
    """How many devices a rate needs, and which configuration serves which load."""
    from autotune.apps.plan import plan as make_plan
    from autotune.apps.plan_confirm import confirm_plan
    from autotune.apps.plan_options import plan_options
    from autotune.results.fleet_words import plan_lines

    options = plan_options(
        rate=rate,
        limits=limits or (),
        headroom=headroom,
        price_per_hour=price_per_hour,
        power=power,
        per_machine=per_machine,
        confirm=confirm,
        time=time,
        out=out,
        studies_dir=studies_dir,
        storage=storage,
    )
    if confirm:
        with view_for(as_json) as view:
            found = confirm_plan(study, options, view)
    else:
        found = make_plan(study, options)
    print_found(as_json, found.to_json, lambda: plan_lines(found))
    return EXIT_NOTHING if found.is_open else EXIT_OK
