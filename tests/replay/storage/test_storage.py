"""How a user says where contents lie."""

import numpy as np
import pytest

from replay.storage import DiskRows, InMemory, MemoryRows, OnDisk, References, Row, as_storage


def test_a_choice_is_taken_as_it_is_or_by_name(tmp_path):
    assert as_storage("references") == References()
    assert as_storage("memory") == InMemory()
    choice = OnDisk(tmp_path, rows_per_segment=7)
    assert as_storage(choice) is choice


def test_each_choice_opens_its_rows(tmp_path):
    for choice, rows, keeps_contents in (
        (References(), MemoryRows, False),
        (InMemory(), MemoryRows, True),
        (OnDisk(str(tmp_path / "rows"), rows_per_segment=2), DiskRows, True),
    ):
        opened = choice.open(is_writer=True)
        assert type(opened) is rows
        assert choice.keeps_contents is keeps_contents
        assert choice.working_folder == (tmp_path / "rows" if rows is DiskRows else None)
        opened.append([Row(None, {"logits": np.arange(3)})] * 2)
        assert opened.read(np.array([1]))[0].payload["logits"].tolist() == [0, 1, 2]
    assert len(list((tmp_path / "rows").iterdir())) == 1
    OnDisk(tmp_path / "other").open(is_writer=False)
    assert not (tmp_path / "other").exists()


def test_another_choice_is_refused():
    with pytest.raises(ValueError, match=r"\['memory', 'references'\].*OnDisk\(folder\), not 'disk'"):
        as_storage("disk")
    with pytest.raises(TypeError, match=r"storage has to be one of .* not 3"):
        as_storage(3)
    with pytest.raises(ValueError, match="rows_per_segment has to be at least 1, not 0"):
        OnDisk("rows", rows_per_segment=0)
