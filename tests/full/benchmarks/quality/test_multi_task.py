"""One model for six tasks of sentence classification, on sentences that are made up."""

from pathlib import Path

import pytest
import torch

from benchmarks.made_up_data import make_data
from benchmarks.quality.data import PARTS
from benchmarks.quality.multi_task.command import runs_of
from benchmarks.quality.multi_task.data import TASKS, cut_padding, number, read_texts
from benchmarks.quality.multi_task.encoder import ConvolutionConfig, ConvolutionEncoder
from benchmarks.quality.multi_task.runs import QUICK, result_of
from benchmarks.quality.multi_task.tables import SEPARATELY

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


def test_reviews_of_subjectivity_are_left_to_it(folder: Path) -> None:
    with (folder / "text" / "subj.all").open("a") as file:
        for label, text in read_texts(folder)["mr"]["train"][:5]:
            file.write(f"{label} {text}\n")
    kept, apart = read_texts(folder, keeps_overlap=True), read_texts(folder)
    assert len(kept["mr"]["train"]) == len(apart["mr"]["train"]) + 5
    assert kept["subj"] == apart["subj"]
    assert kept["mr"]["test"] == apart["mr"]["test"]


def test_words_are_those_of_the_models_own_tasks(folder: Path) -> None:
    texts = read_texts(folder)
    parts = number(texts, ("trec", "cr"), 5)
    assert list(parts) == ["trec", "cr"]
    assert {part: len(own) for part, own in parts["cr"].items()} == {part: len(texts["cr"][part]) for part in PARTS}
    assert parts["trec"]["train"].labels.tolist() == [label for label, _ in texts["trec"]["train"]]
    assert int(parts["trec"]["test"].input_ids.max()) < 53  # fifty words, three special numbers


def test_states_do_not_depend_on_padding() -> None:
    torch.manual_seed(0)
    encoder = ConvolutionEncoder(ConvolutionConfig(20, 4, 3, (1, 3)))
    row = torch.tensor([[2, 5, 9]])
    wide = torch.tensor([[2, 5, 9, 0, 0]])
    states = encoder(row).last_hidden_state
    assert states.shape == (1, 1, encoder.config.hidden_size)
    torch.testing.assert_close(encoder(wide).last_hidden_state, states)
    batch = cut_padding([{"input_ids": ids, "labels": torch.tensor(1)} for ids in wide])
    assert batch["input_ids"].tolist() == row.tolist()


def test_a_result_is_kept(folder: Path, tmp_path: Path) -> None:
    texts = read_texts(folder)
    (run,) = runs_of("proportional", QUICK, 1)
    first = result_of(run, lambda seed: texts, tmp_path)
    assert first["samples"] == {task: len(texts[task]["train"]) for task in TASKS}
    assert result_of(run, lambda seed: texts, tmp_path) == first
    assert len(list(tmp_path.iterdir())) == 1
    assert len(runs_of(SEPARATELY, QUICK, 1)) == len(TASKS)
