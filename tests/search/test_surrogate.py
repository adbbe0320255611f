"""The model: coordinates, the mechanism's derivative, interpolation, noise, coverage."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from search_fakes import record_of

from autotune.core.objective import Limit, Objective
from autotune.core.records import Config, Floats, Ints, Scalar
from autotune.search.cross import Functional
from autotune.search.encoding import FLIGHT_TILES, SLICE_TILES, Dimension, Encoding
from autotune.search.mechanism import Mechanism
from autotune.search.question import Question, observe
from autotune.search.scales import Data
from autotune.search.surrogate import Surrogate

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CORES = ("all", "24|48", "12|24")
CYCLE = Functional(weights=(1.0,))


def encoding() -> Encoding:
    return Encoding(
        [
            Dimension.of("batch_size", BATCHES),
            Dimension.of("instance_count", (1, 2, 4)),
            Dimension.of("cores_per_instance", CORES),
            Dimension.of("batched_h2d", (False, True)),
        ]
    )


def all_rows(code: Encoding) -> Ints:
    sizes = [len(d.choices) for d in code.dimensions]
    return np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)


def true_log_cycle(code: Encoding, rows: Ints) -> Floats:
    """A server of its own: fixed part, cost per item, taking turns, a slow core split."""
    batch = np.exp(code.log_value("batch_size", rows))
    instances = np.exp(code.log_value("instance_count", rows))
    slow = np.array([1.0, 1.1, 1.9])[rows[:, 2]]
    fixed = 1e-3 * np.where(rows[:, 3] == 1, 0.6, 1.0)
    log_cycle: Floats = np.log(fixed + 1e-5 * batch * slow * instances**0.5)
    return log_cycle


def data_of(code: Encoding, rows: Ints, values: Floats, repeats: int = 1) -> Data:
    return Data(
        features=code.features(rows),
        values=values[:, None],
        counts=np.full((len(rows), 1), repeats),
        scatter=np.zeros((len(rows), 1)),
        coupled=(True,),
    )


@pytest.mark.parametrize(
    ("choices", "ordered"),
    [
        ((1, 2, 4), True),
        ((1, 2, "all"), True),
        (("24|48", "12|24", "all"), True),
        ((False, True), False),
        (("1", "2"), False),
        (("process", "thread"), False),
        (("all",), False),
    ],
)
def test_a_parameter_is_ordered_only_where_its_choices_are(
    choices: tuple[int | str | bool, ...], ordered: bool
) -> None:
    assert (Dimension.of("cores_per_instance", choices).position is not None) is ordered


def test_all_cores_lie_at_the_largest_split() -> None:
    position = Dimension.of("cores_per_instance", ("all", "24|48", "12|24")).position
    assert position is not None
    assert position[0] == position[1] > position[2]


def test_a_row_needs_every_parameter_and_snaps_numbers_only() -> None:
    code = encoding()
    config: dict[str, Scalar] = {"batch_size": 8, "instance_count": 2, "cores_per_instance": "all"}
    assert code.row(config) is None
    assert code.row({**config, "batched_h2d": True}) == (3, 1, 0, 1)
    assert code.row({**config, "batched_h2d": True, "batch_size": 60}) == (6, 1, 0, 1)
    assert code.row({**config, "batched_h2d": True, "cores_per_instance": "8|8"}) is None


@pytest.mark.parametrize(("with_batch", "tile"), [(True, None), (True, 7), (False, None)])
def test_the_jacobian_is_the_derivative(with_batch: bool, tile: int | None) -> None:
    code = encoding()
    features = code.features(all_rows(code)[::17])
    mechanism = Mechanism(level=-6.0, level_per_item=-10.0, with_batch=with_batch, tile=tile)
    theta = np.random.default_rng(0).normal(size=mechanism.size(features)) * 0.5
    _, jacobian = mechanism.evaluate(features, theta)
    for k in range(len(theta)):
        step = np.zeros_like(theta)
        step[k] = 1e-6
        up, _ = mechanism.evaluate(features, theta + step)
        down, _ = mechanism.evaluate(features, theta - step)
        np.testing.assert_allclose(jacobian[:, k], (up - down) / 2e-6, atol=1e-6)


def test_twenty_five_trials_predict_the_other_configurations() -> None:
    code = encoding()
    rows = all_rows(code)
    rng = np.random.default_rng(1)
    seen = rng.choice(len(rows), 25, replace=False)
    truth = true_log_cycle(code, rows)
    model = Surrogate.fit(
        data_of(code, rows[seen], truth[seen] + rng.normal(0, 0.03, 25)), with_batch=True
    )
    cross = model.cross(code.features(rows))
    error = cross.mean(CYCLE) - truth
    z = error / np.sqrt(cross.variance(CYCLE))
    assert np.sqrt(np.mean(error**2)) < 0.08  # of a range of 3.5: factor 33
    assert np.mean(np.abs(z) < 2) > 0.85


def test_the_mechanism_extrapolates_where_a_plain_process_would_not() -> None:
    code = encoding()
    rows = all_rows(code)
    small = rows[(rows[:, 0] < 8) & (np.arange(len(rows)) % 5 == 0)]
    large = rows[rows[:, 0] == 9]
    data = data_of(code, small, true_log_cycle(code, small))
    error = {
        with_batch: Surrogate.fit(data, with_batch=with_batch)
        .cross(code.features(large))
        .mean(CYCLE)
        - true_log_cycle(code, large)
        for with_batch in (True, False)
    }
    assert np.abs(error[True]).max() < 0.25
    assert np.abs(error[True]).mean() < 0.3 * np.abs(error[False]).mean()


def test_padding_to_whole_tiles_is_recognised() -> None:
    sizes = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)
    code = Encoding([Dimension.of("batch_size", sizes)])
    rows = all_rows(code)
    truth = np.log(1e-4 + 1e-5 * np.ceil(np.array(sizes) / 64) * 64)
    seen = np.array([0, 1, 2, 3, 5, 6, 7, 10, 11])
    model = Surrogate.fit(data_of(code, rows[seen], truth[seen]), with_batch=True)
    rest = np.setdiff1d(np.arange(len(sizes)), seen)
    error = model.cross(code.features(rows[rest])).mean(CYCLE) - truth[rest]
    assert np.abs(error).max() < 0.09  # a smooth curve is off by 0.2 at 224, 192, 384


def test_waves_of_what_all_instances_have_in_flight_are_recognised() -> None:
    code = Encoding(
        [
            Dimension.of("batch_size", tuple(range(4, 200, 4))),
            Dimension.of("instance_count", (1, 2, 3, 4)),
        ]
    )
    rows = all_rows(code)
    flight = np.exp(code.features(rows).log_work)
    truth = np.log(3e-4 + 3e-4 * np.ceil(flight / 60 - 1e-9))
    rng = np.random.default_rng(2)
    seen = rng.choice(len(rows), 25, replace=False)
    noise = rng.normal(0, 0.02, len(seen))
    model = Surrogate.fit(data_of(code, rows[seen], truth[seen] + noise), with_batch=True)
    tile = model.mechanism.tile
    assert tile is not None and (*SLICE_TILES, *FLIGHT_TILES)[tile] == 60
    error = model.cross(code.features(rows)).mean(CYCLE) - truth
    assert np.sqrt(np.mean(error**2)) < 0.04
    smooth = np.log(3e-4 + 5e-6 * flight)
    model = Surrogate.fit(data_of(code, rows[seen], smooth[seen] + noise), with_batch=True)
    assert model.mechanism.tile is None


def test_repeats_tell_noise_from_shape() -> None:
    code = encoding()
    rows = all_rows(code)[::6]
    values = true_log_cycle(code, rows)
    quiet = data_of(code, rows, values, repeats=4)
    noisy = Data(
        features=quiet.features,
        values=quiet.values,
        counts=quiet.counts,
        scatter=np.full_like(quiet.values, 3 * 0.15**2),
        coupled=(True,),
    )
    assert Surrogate.fit(noisy, with_batch=True).scales.noise[0] > 0.1
    assert Surrogate.fit(quiet, with_batch=True).scales.noise[0] < 0.02


def test_an_output_that_follows_the_cycle_learns_from_it() -> None:
    code = encoding()
    rows = all_rows(code)
    truth = true_log_cycle(code, rows)
    seen = np.arange(0, len(rows), 5)
    tail = truth[seen] + 0.2
    tail[4:] = np.nan  # only four tails are known
    data = Data(
        features=code.features(rows[seen]),
        values=np.stack([truth[seen], tail], axis=1),
        counts=np.stack([np.ones(len(seen)), ~np.isnan(tail)], axis=1).astype(np.int64),
        scatter=np.zeros((len(seen), 2)),
        coupled=(True, True),
    )
    cross = Surrogate.fit(data, with_batch=True).cross(code.features(rows))
    asked = Functional(weights=(0.0, 1.0))
    error = cross.mean(asked) - (truth + 0.2)
    assert np.abs(error).mean() < 0.1
    assert np.all(np.abs(error) < 4 * np.sqrt(cross.variance(asked)))


def test_expected_trials_move_no_mean_and_shrink_the_variance() -> None:
    code = encoding()
    rows = all_rows(code)
    data = data_of(code, rows[::9], true_log_cycle(code, rows[::9]))
    model = Surrogate.fit(data, with_batch=True)
    pending = code.features(rows[40:42])
    before, after = model.cross(pending), model.expecting(pending).cross(pending)
    np.testing.assert_allclose(after.mean(CYCLE), before.mean(CYCLE), atol=2e-3)
    assert np.all(after.variance(CYCLE) < before.variance(CYCLE))


def test_one_observation_is_enough_to_answer() -> None:
    code = encoding()
    rows = all_rows(code)
    model = Surrogate.fit(data_of(code, rows[:1], np.array([-7.0])), with_batch=True)
    cross = model.cross(code.features(rows))
    assert np.all(np.isfinite(cross.mean(CYCLE)))
    assert np.all(cross.variance(CYCLE) > 0)


def test_a_noisy_trial_counts_as_what_it_would_have_been_without_the_noise() -> None:
    code = Encoding([Dimension.of("batch_size", (1, 2, 4))])
    question = Question.of(
        Objective(name="o", limits=(Limit(metric="latency_p99", bound=1.0),)), code
    )
    quiet = record_of(0, Config(batch_size=4))
    noise = {"trust": "noisy: a neighbour", "run_queue_wait_ratio": 0.2}
    measurement = replace(quiet.measurements[0], **noise)  # type: ignore[arg-type]
    clean, noisy = (
        observe(r, question, code) for r in (quiet, replace(quiet, measurements=(measurement,)))
    )
    assert clean is not None
    assert noisy is not None
    gap = {name: noisy.values[name] - clean.values[name] for name in clean.values}
    assert gap["throughput"] == pytest.approx(-math.log(0.8))
    assert gap["latency_p99"] == pytest.approx(math.log(0.8))


@pytest.mark.parametrize(("stages", "work_s", "each_s"), [(2, 0.8, 0.005), (4, 1.5, 0.03)])
def test_two_probes_of_a_pipeline_find_the_best_micro_batch_count(stages, work_s, each_s) -> None:
    counts = (1, 2, 4, 8, 16, 32, 64)
    code = Encoding(
        [
            Dimension.of("global_batch_size", (64,)),
            Dimension.of("stage_count", (stages,)),
            Dimension.of("schedule", ("GPipe", "1F1B")),
            Dimension.of("micro_batch_count", counts),
        ]
    )
    rows = all_rows(code)
    count = np.array(counts, float)[rows[:, 3]]
    truth = np.log(work_s * (count + stages - 1) / count + each_s * count)
    probes = np.flatnonzero((rows[:, 2] == 0) & np.isin(count, (1, 16)))
    model = Surrogate.fit(data_of(code, rows[probes], truth[probes]), with_batch=True)
    cross = model.cross(code.features(rows))
    assert truth[np.argmin(cross.mean(CYCLE))] <= truth.min() + math.log(1.05)
    assert np.abs(cross.mean(CYCLE) - truth)[rows[:, 2] == 0].max() < 0.2


def test_the_jacobian_of_a_pipeline_is_the_derivative() -> None:
    names = ("global_batch_size", "stage_count", "schedule", "micro_batch_count")
    choices = ((32, 64), (2, 4), ("GPipe", "ZBVZeroBubble"), (1, 4, 16))
    code = Encoding([Dimension.of(n, c) for n, c in zip(names, choices, strict=True)])
    features = code.features(all_rows(code))
    mechanism = Mechanism(level=0.0, level_per_item=-3.0, with_batch=True)
    theta = np.random.default_rng(1).normal(size=mechanism.size(features)) * 0.5
    _, jacobian = mechanism.evaluate(features, theta)
    for k in range(len(theta)):
        step = np.zeros_like(theta)
        step[k] = 1e-6
        up, down = (mechanism.evaluate(features, theta + s)[0] for s in (step, -step))
        np.testing.assert_allclose(jacobian[:, k], (up - down) / 2e-6, atol=1e-6)
