"""Finding space files and objectives, and loading an objective."""

from __future__ import annotations

from pathlib import Path

import pytest

import autotune
from autotune.core.errors import UsageError
from autotune.space.loader import load_space
from autotune.space.shipped import find_shipped, load_objective

HEAD = "workload: {model: mlp}\n"
OWN = """
from autotune.core.objective import Goal, Limit, Objective

OBJECTIVE = Objective(
    name="mine", goals=(Goal(metric="power"),), limits=(Limit(metric="latency_p99", bound=0.5),)
)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name", ["online", "online.yaml", "offline", "offline.yaml", "knee", "pareto"]
)
def test_shipped_spaces_load_by_name_from_anywhere(name):
    space = load_space(name)
    assert space.study == name.split(".")[0]
    assert space.budget.time_s == 300.0


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_shipped_rate_study_seeks_a_rate_on_any_machine(cores: int) -> None:
    ladder = tuple(n for n in (1, 2, 4, 8) if n <= cores)
    space = load_space("online").on_device({"core_count": cores}, ladder)
    assert space.objective.load.kind == "poisson" and space.objective.load.seeks_rate
    assert space.allows(space.baseline)
    delays = {config.get("max_queue_delay", None) for config in space.configs()}
    assert delays == {0.0, 0.002}
    assert space.budget.time_s == 300.0  # `make run` ends within six minutes


def test_a_path_comes_before_the_working_directorys_folder_and_that_before_the_shipped(tmp_path):
    shipped = find_shipped("search_spaces", "online.yaml")
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "online.yaml").write_text(HEAD)
    assert find_shipped("search_spaces", "online") == Path("search_spaces/online.yaml")
    (tmp_path / "online.yaml").write_text(HEAD)
    assert find_shipped("search_spaces", "online.yaml") == Path("online.yaml")
    assert shipped.is_absolute()


def test_inside_a_wheel_the_packages_own_folder_is_used(tmp_path, monkeypatch):
    package = tmp_path / "site" / "autotune"
    (package / "search_spaces").mkdir(parents=True)
    (package / "search_spaces" / "mine.yaml").write_text(HEAD)
    monkeypatch.setattr(autotune, "__file__", str(package / "__init__.py"))
    assert find_shipped("search_spaces", "mine") == package / "search_spaces" / "mine.yaml"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("onlin", "did you mean 'online'?"),
        ("nothing_like_it", "known: "),
        ("../search_spaces/online.yaml", "no space file"),
        ("/no/such/online.yaml", "did you mean 'online'?"),
        (".", "directory"),
        ("", "no space file"),
        ("x" * 5000, "no space file"),
        ("a\x00b", "no space file"),
    ],
)
def test_a_space_that_is_not_there(name, words):
    with pytest.raises(UsageError) as caught:
        load_space(name)
    assert words in str(caught.value) or name == ""
    assert len(str(caught.value)) < 500


def test_an_unreadable_file_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "s.yaml").write_text(HEAD)

    def denied(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(UsageError, match="cannot be read"):
        load_space("s.yaml")


def test_an_objective_of_ones_own(tmp_path):
    (tmp_path / "objectives").mkdir()
    (tmp_path / "objectives" / "mine.py").write_text(OWN)
    (tmp_path / "s.yaml").write_text(HEAD + "objective: mine\n")
    by_name = load_space("s.yaml").objective
    assert by_name.name == "mine" and by_name.limits[0].bound == 0.5
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "s.yaml").write_text(HEAD + "objective: o.py\nlimits: {latency_p99: 1ms}\n")
    (tmp_path / "sub" / "o.py").write_text(OWN)
    by_path = load_space("sub/s.yaml").objective
    assert [limit.bound for limit in by_path.limits] == [0.001]  # the file's limit replaces it


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "does not define OBJECTIVE"),
        ("OBJECTIVE = 3", "does not define OBJECTIVE"),
        ("1 / 0", "ZeroDivisionError"),
        ("import nosuchmodule", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        (OWN.replace('"power"', '"speed"'), "unknown metric 'speed'"),
        (OWN.replace('"latency_p99"', '"p99"'), "unknown metric 'p99'"),
        (OWN.replace('(Goal(metric="power"),)', "()"), "no goals"),
    ],
)
def test_a_bad_objective_names_the_file_and_the_line_that_asked_for_it(tmp_path, code, words):
    (tmp_path / "o.py").write_text(code)
    (tmp_path / "s.yaml").write_text(HEAD + "objective: o.py\n")
    with pytest.raises(UsageError) as caught:
        load_space("s.yaml")
    message = str(caught.value)
    assert message.startswith("s.yaml:2: objective: ") and words in message
    assert "o.py" in message and "\n" not in message


def test_shipped_objectives():
    online = load_objective("online_latency", Path())
    assert "latency_p99" in online.required_limits
    offline = load_objective("offline_throughput", Path())
    assert offline.required_limits == () and offline.limits == ()
    with pytest.raises(ValueError, match="no file"):
        load_objective("./online_latency.py", Path())
