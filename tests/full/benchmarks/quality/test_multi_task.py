"""One model for six tasks of sentence classification, on sentences that are made up."""

from pathlib import Path

import pytest

from benchmarks.made_up_data import make_data
from benchmarks.quality.data import PARTS
from benchmarks.quality.multi_task.data import TASKS, read_texts

SHARED = "a sentence of forty letters or more that several sets have in common"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_data(tmp_path_factory.mktemp("data"))
    for number_ in range(40):
        text = f"{SHARED[:-9]} {number_} {'x' * number_}"
        for name, written in (("rt-polarity.all", f"( {text} )"), ("stsa.binary.train", f"-lrb- {text} -rrb-")):
            with (path / "text" / name).open("a") as file:
                file.write(f"1 {written}\n")
    return path


def test_what_is_held_out_is_trained_on_by_no_task(folder: Path) -> None:
    texts = read_texts(folder, keeps_overlap=True)
    trained = {text for task in TASKS for _, text in texts[task]["train"]}
    held = {text for task in TASKS for part in PARTS[1:] for _, text in texts[task][part]}
    assert held
    assert not trained & held
    assert any("-lrb-" in text for text in held)
    assert not any(SHARED[:40] in text for text in trained)  # all begin alike, and some are held out
