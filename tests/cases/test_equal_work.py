"""Speed counts only for the same work: outputs of every configuration are the baseline's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Place


def test_a_model_that_drops_items_of_large_batches_is_not_recommended_for_it(place: Place) -> None:
    place.write_space("Shortened", "params: {batch_size: [1, 4, 8, 16, 32, 64]}")
    code, result = place.run()
    assert code == 0
    assert result["config"]["batch_size"] in (1, 4)  # which of them is faster does not matter
    # Four wrong ones in a row are the configurations' faults: the study goes on to its end.
    assert result["complete"] and result["trials"]["wrong_output"] == 4
    for trial in place.trials():
        size = int(trial["batch_size"])
        assert trial["outcome"] == ("ok" if size < 8 else "wrong_output")
        if size >= 8:
            expected = f"no axis of the output has the {size} items that went in: {size // 2} x 4"
            assert expected in trial["reasons"]
        else:
            assert float(trial["output_difference"]) < 1e-5


def test_outputs_that_are_no_numbers_end_a_study_with_advice(place: Place) -> None:
    place.write_space("undefined", "params: {batch_size: [1, 4, 8, 16]}")
    code, result = place.run()
    assert code == 1 and result["status"] == "failed"
    reasons = {trial["reasons"] for trial in place.trials()}
    assert all("not a number (NaN)" in r and "give inputs low and high" in r for r in reasons)


def test_outputs_are_held_against_the_baselines_in_the_proof_as_well(place: Place) -> None:
    place.write_space("right_in_its_trial_alone", "params: {batch_size: [1, 8]}")
    seen = {"SEEN_FILE": str(place.path / "seen")}
    proof = ("--set", "confirm={top: 1, duration: 1s}")
    code, result = place.run(*proof, env=seen)
    assert code == 0 and result["config"]["batch_size"] == 1
    outcomes = {
        (trial["phase"], trial["batch_size"]): (trial["outcome"], trial["reasons"])
        for trial in place.trials()
    }
    assert outcomes["search", "8"][0] == "ok"
    outcome, reasons = outcomes["confirm", "8"]
    assert outcome == "wrong_output" and "outputs differ from the baseline's" in reasons
