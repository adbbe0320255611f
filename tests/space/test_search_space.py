"""The resolved space: what is allowed, how many, which baseline, on which device."""

from __future__ import annotations

import itertools
import pickle
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.errors import UsageError
from autotune.core.objective import Objective
from autotune.core.records import Config, WorkloadSpec
from autotune.space import grid
from autotune.space.rules import Rule
from autotune.space.search_space import Parameter, SearchSpace, check_not_empty, settle_baseline

HEAD = "workload: {model: mlp}\n"


def space_of(choices: dict[str, tuple], rules: tuple[str, ...] = (), **more) -> SearchSpace:
    return SearchSpace(
        study="t",
        workload=WorkloadSpec(kind="torch", model="mlp"),
        device="cpu",
        objective=Objective(name="o"),
        params=tuple(Parameter(name=n, choices=c) for n, c in choices.items()),
        rules=tuple(Rule(text=r) for r in rules),
        **more,
    )


def test_only_divisible_combinations_are_left(load):
    space = load(HEAD + "params: {batch_size: [1, 2, 4, 8], micro_batch_count: [1, 2, 3, 4, 8]}")
    configs = list(space.configs())
    assert len(configs) == 10 == space.allowed_count(1000)
    assert space.combination_count == 20
    assert all(c.batch_size % c.micro_batch_count == 0 for c in configs)
    assert all(space.contains(c) for c in configs)


def test_fewer_items_than_micro_batches_are_never_tried(refusal, load):
    head = HEAD + "params: {micro_batch_count: [4], batch_size: "
    assert "none of 3 combinations" in refusal(head + "[1, 3, 5]}")
    assert [c.batch_size for c in load(head + "[1, 3, 5, 8]}").configs()] == [8]


def test_an_empty_space_is_refused_when_it_is_loaded(refusal):
    message = refusal(HEAD + "params: {batch_size: [1], micro_batch_count: [2]}")
    assert "none of 1 combinations" in message and "batch_size % micro_batch_count" in message


def test_an_empty_space_that_only_the_device_shows_is_refused_there(load):
    space = load(HEAD + "params: {instance_count: [2, 4]}\nrules: [instance_count <= core_count]")
    assert space.on_device({"core_count": 2}, ("all",)).allowed_count(9) == 1
    with pytest.raises(UsageError, match=r"none of 2 combinations .* core_count=1"):
        space.on_device({"core_count": 1}, ("all",))


def test_a_rule_about_what_the_device_lacks_is_refused(load):
    space = load(HEAD + "rules: [cube_per_instance * 1 <= cube_count]")
    with pytest.raises(UsageError, match="cube_count"):
        space.on_device({"core_count": 4}, ("all",))
    assert space.on_device({"core_count": 24, "cube_count": 24}, ("all",)).allowed_count(2) == 1


def test_auto_cores_come_from_the_device(load):
    space = load(HEAD + "params: {cores_per_instance: auto}").on_device(
        {"core_count": 4}, (1, 2, 4)
    )
    assert space.parameter("cores_per_instance").choices == (1, 2, 4)
    assert not space.parameter("cores_per_instance").auto
    assert space.baseline.cores_per_instance == 4  # "all" of this device


def test_core_counts_beyond_the_device_are_left_out_and_said(load):
    space = load(HEAD + "params: {cores_per_instance: [1, 2, 8, 64, all]}")
    fitted = space.on_device({"core_count": 2}, ("all",))
    assert fitted.parameter("cores_per_instance").choices == (1, 2)
    assert [note.split(" left")[0] for note in fitted.notes[:3]] == [
        "cores_per_instance 8",
        "cores_per_instance 64",
        "cores_per_instance all",
    ]
    with pytest.raises(UsageError, match="above the 2 cores"):
        load(HEAD + "params: {cores_per_instance: [8]}").on_device({"core_count": 2}, ("all",))


CHIP = {"core_count": 24, "cube_count": 24, "vector_count": 48}


def test_splits_of_another_form_or_above_the_chip_are_left_out_and_said(load):
    space = load(HEAD + 'params: {cores_per_instance: [8, "8|8", "24|48", "25|8", "8|49", all]}')
    fitted = space.on_device(CHIP, ("all",), splits=("cube|vector",))
    assert fitted.parameter("cores_per_instance").choices == ("8|8", "24|48", "all")
    assert [note for note in fitted.notes if "left out" in note] == [
        'cores_per_instance 8 left out: not how this device is split (write "cube|vector")',
        "cores_per_instance 25|8 left out: above the 24|48 cores here",
        "cores_per_instance 8|49 left out: above the 24|48 cores here",
    ]
    on_cpu = space.on_device({"core_count": 8}, (1,), splits=("count",))
    assert on_cpu.parameter("cores_per_instance").choices == (8,)


def test_instances_may_together_ask_for_more_than_the_chip_has(load):
    space = load(HEAD + 'params: {instance_count: [1, 4], cores_per_instance: ["16|16"]}')
    assert space.on_device(CHIP, ("all",), splits=("cube|vector",)).allowed_count(9) == 2


def test_a_device_without_core_limits_loses_the_dimension_with_a_word(load):
    space = load(HEAD + 'params: {cores_per_instance: ["8|8", "16|16"], instance_count: [1, 2]}')
    fitted = space.on_device(CHIP, ("all",), splits=(), why_whole="it was refused")
    assert fitted.parameter("cores_per_instance").choices == ("all",)
    assert [p.name for p in fitted.searched] == ["instance_count"]
    assert "cores_per_instance is not searched: it was refused" in fitted.notes
    by_device = load(HEAD + "params: {cores_per_instance: auto}")
    fitted = by_device.on_device(CHIP, ("all",), splits=(), why_whole="it was refused")
    assert "cores_per_instance is not searched: it was refused" in fitted.notes
    untouched = load(HEAD).on_device(CHIP, ("all",), splits=(), why_whole="it was refused")
    assert not [note for note in untouched.notes if "refused" in note]


@pytest.mark.parametrize("core_count", [1, 2, 8])
@pytest.mark.parametrize("name", ["online", "offline"])
def test_the_shipped_spaces_fit_small_and_large_machines(name, core_count):
    from autotune.space.loader import load_space

    space = load_space(name).on_device({"core_count": core_count}, ("all",))
    assert space.contains(space.baseline)
    assert space.baseline.batch_size == 1 and space.baseline.instance_count == 1
    assert space.allowed_count(10_000) >= space.budget.trials
    assert all(
        config.instance_count * space.facts["core_count"] <= core_count
        for config in space.configs()
        if config.cores_per_instance == "all"
    )


def test_the_last_parameter_varies_fastest():
    space = space_of({"batch_size": (1, 2), "instance_count": (1, 2)})
    assert [(c.batch_size, c.instance_count) for c in space.configs()] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]


def test_a_million_combinations_stay_lazy_and_are_counted():
    choices = {f"env.V{i}": tuple(range(10)) for i in range(6)}
    space = space_of({"batch_size": (1, 2, 4), **choices}, ("batch_size < 4",))
    began = time.process_time()
    assert len(list(itertools.islice(space.configs(), 5))) == 5
    assert space.combination_count == 3_000_000
    assert space.allowed_count(10**9) == 2_000_000
    assert space.allowed_count(1000) == 1000
    assert time.process_time() - began < 1.0


def test_a_hopeless_tangle_of_rules_is_given_up_after_a_number_of_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert grid.MAX_STEPS <= 1_000_000  # some seconds
    monkeypatch.setattr(grid, "MAX_STEPS", 20_000)
    choices = {f"env.V{i}": tuple(range(1, 1001)) for i in range(4)}
    space = space_of(choices, ("env.V0 * env.V1 + env.V2 == 0.5 - env.V3",))
    with pytest.raises(UsageError, match="20000 combinations were tried; narrow"):
        check_not_empty(space)


_CHOICES = st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(
    lambda values: tuple(sorted(values))
)
_RULES = st.lists(
    st.sampled_from(
        [
            "batch_size % micro_batch_count == 0",
            "instance_count * cores_per_instance <= 8",
            "batch_size > instance_count",
            "micro_batch_count != 3",
            "batch_size + micro_batch_count + instance_count < 15",
        ]
    ),
    unique=True,
)


@settings(deadline=None)
@given(_CHOICES, _CHOICES, _CHOICES, _CHOICES, _RULES, st.integers(1, 40))
def test_walking_counting_and_nearest_agree_with_plain_filtering(b, n, c, m, rules, wanted):
    names = ("batch_size", "instance_count", "cores_per_instance", "micro_batch_count")
    space = space_of(dict(zip(names, (b, n, c, m), strict=True)), tuple(rules))
    every = [
        Config.from_dict(dict(zip(names, values, strict=True)))
        for values in itertools.product(b, n, c, m)
    ]
    plain = [config for config in every if space.allows(config)]
    assert list(space.configs()) == plain
    assert space.allowed_count(10**6) == len(plain)
    if plain:
        nearest = space.nearest_allowed(Config(batch_size=wanted, cores_per_instance=wanted))
        assert nearest in plain
        assert space.nearest_allowed(plain[-1]) == plain[-1]
    else:
        with pytest.raises(UsageError):
            check_not_empty(space)


@pytest.mark.parametrize(
    ("baseline", "params", "expected"),
    [
        ("{batch_size: 5}", "{batch_size: {low: 1, high: 64, log: true}}", {"batch_size": 6}),
        ("{batch_size: 1000}", "{batch_size: [8, 64]}", {"batch_size": 64}),
        ("{batch_size: 10}", "{batch_size: [4, 24]}", {"batch_size": 24}),  # nearer as a ratio
        ("{}", "{batch_size: [8, 64], instance_count: [2, 4]}", {"batch_size": 8}),
        ("{}", "{cores_per_instance: [1, 2, 4]}", {"cores_per_instance": 4}),
        ("{batched_h2d: off}", "{batched_h2d: true}", {"batched_h2d": True}),
        (
            "{instance_mode: thread}",
            "{instance_mode: [process, thread]}",
            {"instance_mode": "thread"},
        ),
        ("{}", "{instance_mode: [thread, process]}", {"instance_mode": "process"}),
        ("{}", "{env.A: [z, a]}", {"env.A": "z"}),
        ("{micro_batch_count: 2}", "{batch_size: [1, 4], micro_batch_count: [1, 2]}", None),
    ],
)
def test_the_baseline_is_fitted_into_the_space(load, baseline, params, expected):
    space = load(HEAD + f"params: {params}\nbaseline: {baseline}\n")
    assert space.contains(space.baseline)
    for name, value in (expected or {}).items():
        assert space.baseline.get(name, "") == value


def test_a_baseline_that_a_rule_forbids_moves_and_says_so(load):
    space = load(
        HEAD + "params: {batch_size: [1, 2, 8], instance_count: [1, 2]}\n"
        "rules: [batch_size >= 2]\nbaseline: {batch_size: 1, instance_count: 2}\n"
    )
    assert (space.baseline.batch_size, space.baseline.instance_count) == (2, 2)
    assert any("batch_size=1 became 2" in note for note in space.notes)
    assert sum("baseline" in note for note in settle_baseline(space).notes) == 1


def test_the_baseline_follows_the_device(load):
    text = (
        HEAD + "params: {instance_count: [1, 2], cores_per_instance: [1, 2, 4]}\n"
        "rules: [instance_count * cores_per_instance <= core_count]\n"
    )
    for core_count, expected in ((1, 1), (2, 2), (8, 4)):
        space = load(text).on_device({"core_count": core_count}, ("all",))
        assert space.baseline.cores_per_instance == expected
        assert space.contains(space.baseline)


ROWS = [
    Config(batch_size=b, instance_count=n, cores_per_instance=c)
    for b, n, c in [(1, 1, "all"), (3, 1, "all"), (8, 1, 2), (8, 2, 1), (3, 2, 1)]
]


@pytest.fixture
def replay(load, tmp_path):
    (tmp_path / "grid.csv").write_text("")

    def replay(rest: str = "") -> SearchSpace:
        return load("workload: {replay: grid.csv}\n" + rest)

    return replay


def test_the_rows_of_a_replay_are_its_space(replay):
    space = replay().on_grid(ROWS)
    assert set(space.configs()) == set(ROWS)
    assert space.allowed_count(100) == 5 and space.allowed_count(2) == 2
    assert space.parameter("batch_size").choices == (1, 3, 8)
    assert space.parameter("batch_size").log
    assert space.parameter("cores_per_instance").choices == (1, 2, "all")
    assert space.baseline == ROWS[0]
    assert not space.allows(Config(batch_size=1, instance_count=2, cores_per_instance=1))


def test_a_replays_rows_need_not_be_divisible(replay):
    rows = [Config(batch_size=3, micro_batch_count=2), Config(batch_size=1)]
    assert replay().on_grid(rows).allowed_count(9) == 2


def test_a_file_narrows_a_replay(replay):
    space = replay(
        "params: {batch_size: [3, 5, 8]}\nrules: [instance_count == 2]\nbaseline: {batch_size: 1}"
    ).on_grid(ROWS)
    assert [c.batch_size for c in space.configs()] == [3, 8]
    assert space.baseline.batch_size == 3
    assert any("5 left out" in note for note in space.notes)


@pytest.mark.parametrize(
    "rest",
    [
        "params: {batch_size: [5]}",
        "params: {queue: [5]}",
        "baseline: {queue: 5}",
        "rules: [batch_size > 8]",
        "rules: [queue > 8]",
    ],
)
def test_a_replay_refuses_what_was_not_recorded(replay, rest):
    with pytest.raises(UsageError):
        replay(rest).on_grid(ROWS)


def test_a_replay_takes_facts_but_no_limits_from_its_device(replay):
    space = replay(
        "params: {cores_per_instance: [2, all]}\n"
        "rules: [instance_count * cores_per_instance <= core_count, batch_size >= 3]\n"
    )
    facts = {"core_count": 1}
    for on_both in (
        space.on_device(facts, (1,)).on_grid(ROWS[1:]),
        space.on_grid(ROWS[1:]).on_device(facts, (1,)),
    ):
        assert on_both.parameter("cores_per_instance").choices == (2, "all")
        assert list(on_both.configs()) == [ROWS[1]]
    auto = replay("params: {cores_per_instance: auto}").on_device(facts, (1,)).on_grid(ROWS)
    assert auto.parameter("cores_per_instance").choices == (1, 2, "all")


def test_a_grid_without_rows_is_refused(replay):
    with pytest.raises(UsageError, match="no rows"):
        replay().on_grid([])


def test_a_space_survives_pickling(load):
    space = load(HEAD + "params: {batch_size: [1, 2]}\nlimits: {latency_p99: 1ms}\n")
    again = pickle.loads(pickle.dumps(space))
    assert again == space and again.allows(Config())


def test_nearest_choice():
    p = Parameter(name="batch_size", choices=(1, 2, 4, 8, "all"), log=True)
    assert [p.nearest(v) for v in (1, 3, 6, 100, "all", "x")] == [1, 4, 8, 8, "all", 1]
    flag = Parameter(name="batched_h2d", choices=(False, True))
    assert flag.nearest(True) is True
    assert replace(flag, choices=(True,)).nearest(False) is True
