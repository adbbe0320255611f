"""What real models answer to the probes, and which of them are caught."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.core.errors import WrongOutput
from autotune.core.records import Answers, Config, GroupSpec, InputSpec, WorkloadSpec
from autotune.devices import device_kind, find_device
from autotune.measure.equal_work import Agreement, combined, compare, reference_of
from autotune.trial.session import Launcher, open_session

MODELS = Path(__file__).with_name("models.py")
BASE = Config(cores_per_instance=1)
LARGE = Config(batch_size=32, cores_per_instance=1)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def answers(
    launcher: Launcher, model: str, config: Config, precision: str = "float32"
) -> tuple[Answers, ...]:
    info, kind = find_device("cpu"), device_kind("cpu")
    is_factory = model not in ("mlp", "dlrm")
    spec = GroupSpec(
        config=config,
        workload=WorkloadSpec(
            kind="torch",
            model=f"{MODELS}:{model}" if is_factory else model,
            precision=precision,
            inputs=(InputSpec(name="x", shape=("batch", 16)),) if is_factory else (),
            options={} if is_factory else {"size": "small"},
        ),
        devices=("cpu",),
        cores=kind.assign_cores(config, info),
        environment=kind.environment(config, info),
    )
    with open_session(spec, launcher, timeout_s=20) as session:
        return session.answers


def check(launcher: Launcher, model: str, config: Config, precision: str = "float32") -> Agreement:
    reference = reference_of(answers(launcher, model, BASE, precision)[0])
    given = answers(launcher, model, config, precision)
    return combined([compare(one, reference) for one in given])


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ("honest", "float32"),
        ("honest", "bfloat16"),
        ("mlp", "float32"),
        ("mlp", "bfloat16"),
        ("dlrm", "float32"),
    ],
)
def test_sizes_slices_copies_and_instances_change_no_answer(
    launcher: Launcher, model: str, precision: str
) -> None:
    for config in (
        LARGE,
        LARGE.changed(micro_batch_count=4, batched_h2d=True),
        LARGE.changed(batch_size=3, instance_count=2),
        LARGE.changed(batch_size=6, instance_count=2, instance_mode="thread"),
    ):
        given = answers(launcher, model, config, precision)
        assert len(given) == config.instance_count
        assert {one.precision for one in given} == {precision}
        found = check(launcher, model, config, precision)
        assert found.difference is not None and found.difference < found.tolerance / 3


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("drops_half_from_8", "no axis of the output has the 32 items that went in: 16 x 4"),
        ("blanks_half_from_8", r"differ from the baseline's: \d+ of \d+ items by up to"),
        ("remembers_by_size", r"differ from the baseline's: \d+ of \d+ items by up to"),
        ("remembers_by_address", r"differ from the baseline's: \d+ of \d+ items by up to"),
        ("casts_from_8", r"float32 allows 0.001"),
        ("not_a_number_from_8", r"items is not a number \(NaN\)"),
    ],
)
def test_a_larger_batch_that_does_less_or_other_work_is_caught(
    launcher: Launcher, model: str, message: str
) -> None:
    assert check(launcher, model, BASE.changed(batch_size=4)).difference is not None
    with pytest.raises(WrongOutput, match=message):
        check(launcher, model, LARGE)


def test_slices_below_the_fault_are_not_accused(launcher: Launcher) -> None:
    found = check(launcher, "blanks_half_from_8", LARGE.changed(micro_batch_count=8))
    assert found.difference is not None


def test_outputs_that_differ_less_than_their_precision_tells_are_compared_coarsely(
    launcher: Launcher,
) -> None:
    # Without training, what the recommender says of its items differs by little.
    found = check(launcher, "dlrm", LARGE, "bfloat16")
    assert found.is_coarse and found.difference is not None
    assert "only gross faults" in found.caveats[0]
    assert not check(launcher, "dlrm", LARGE).caveats


def test_dropout_is_told_and_not_accused(launcher: Launcher) -> None:
    assert "from call to call" in check(launcher, "drops_out", LARGE).untold


def test_labels_and_a_figure_of_the_whole_batch_can_be_compared(launcher: Launcher) -> None:
    assert check(launcher, "labels_and_mean", LARGE).difference == 0
