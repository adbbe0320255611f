from __future__ import annotations

import gc

import pytest

from autotune.core.collector import uncollected


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_afterwards_as_it_was(was_on: bool) -> None:
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ValueError, match="x"), uncollected():
            with uncollected():
                pass
            assert not gc.isenabled()
            raise ValueError("x")
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
