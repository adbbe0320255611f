"""What a reviewer's tool is told of trials: which are feasible, and which one is the best."""

from __future__ import annotations

import optuna
import pytest
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState, create_trial

from autotune.search.reviewed import reviewed


def a_study(direction: str = "maximize") -> optuna.Study:
    """Values 1, 9, 5, 3, of which 9 breaks a limit; and one that failed."""
    study = optuna.create_study(storage=InMemoryStorage(), direction=direction)
    for value, excess in ((1.0, -1.0), (9.0, 0.5), (5.0, 0.0), (3.0, -2.0)):
        study.add_trial(
            create_trial(
                value=value,
                constraints={"latency_p99_s": excess, "runs": -1.0},
                user_attrs={"record": {"long": "text"}, "lease": 1, "outcome": "ok"},
            )
        )
    study.add_trial(create_trial(state=TrialState.FAIL))
    return study


def test_feasibility_is_told_in_the_old_form_and_nothing_is_stored() -> None:
    study = a_study()
    seen = reviewed(study._storage, study._study_id, None)
    trials = seen.get_all_trials(study._study_id, deepcopy=False)
    assert [t.system_attrs.get("constraints") for t in trials] == [
        [-1.0, -1.0], [0.5, -1.0], [0.0, -1.0], [-2.0, -1.0], None
    ]  # fmt: skip
    assert [t.user_attrs.get("feasible") for t in trials] == ["yes", "no", "yes", "yes", None]
    assert set(trials[0].user_attrs) == {"feasible", "outcome"}
    kept = study._storage.get_all_trials(study._study_id)
    assert all("constraints" not in t.system_attrs for t in kept)
    assert "record" in kept[0].user_attrs and "feasible" not in kept[0].user_attrs
    assert seen.get_study_name_from_id(study._study_id) == study.study_name


@pytest.mark.parametrize(
    ("direction", "best", "number"),
    [("maximize", None, 2), ("minimize", None, 0), ("maximize", 3, 3), ("maximize", 77, 2)],
)
def test_the_best_is_the_recommended_one_else_the_best_that_is_feasible(
    direction: str, best: int | None, number: int
) -> None:
    study = a_study(direction)
    seen = reviewed(study._storage, study._study_id, best)
    assert seen.get_best_trial(study._study_id).number == number


def test_other_studies_of_the_storage_are_left_as_they_are() -> None:
    study = a_study()
    other = optuna.create_study(storage=study._storage, direction="maximize")
    other.add_trial(create_trial(value=2.0, constraints={"x": 1.0}, user_attrs={"record": 1}))
    seen = reviewed(study._storage, study._study_id, 0)
    (trial,) = seen.get_all_trials(other._study_id)
    assert "record" in trial.user_attrs and "constraints" not in trial.system_attrs
    assert seen.get_best_trial(other._study_id).number == 0
