"""The published extension's test script, run as it is but for its import; on two ranks: tests/distributed."""

from pathlib import Path

import pytest

from tests.published import EPOCHS, lines_of, run_script, write_model


@pytest.mark.parametrize("drop_last", [False, True])
def test_coverage_epoch_and_sizes_are_the_published_ones(tmp_path: Path, drop_last: bool) -> None:
    write_model(tmp_path / "model")
    shown = run_script(tmp_path / "model", tmp_path / "out", drop_last)
    assert shown["lines"] == [pytest.approx(line) for line in lines_of(1, drop_last)]
    assert shown["rows"] == [rows for epoch in EPOCHS[1, drop_last] for rows in epoch]
    assert shown["indices"] == list(range(10))
