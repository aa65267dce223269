"""Names that are those of splits."""

import pytest

from mixer.mixture.split_names import find_held_out

# What well-known data sets of the Hub call their splits, and which of them are held out.
SPLITS: dict[str, tuple[str, str]] = {
    "imdb": ("train unsupervised", "test"),
    "mnli": ("train", "validation_matched validation_mismatched test_matched test_mismatched"),
    "ultrachat": ("train_sft train_gen", "test_sft test_gen"),
    "ultrafeedback": ("train_prefs train_sft", "test_prefs test_sft"),
    "anli": ("train_r1 train_r2", "dev_r1 dev_r2 test_r1 test_r2"),
    "librispeech": ("train.clean.100 train.other.500", "validation.clean test.clean test.other"),
    "mmlu": ("auxiliary_train", "test validation dev"),
    "refcoco": ("train", "val testA testB"),
    "plain": ("training", "testing"),
    "dev": ("train", "dev"),
    "shards": ("train-00 train-01", "validation-00"),
    "held out": ("Train", "held_out"),
    "named": ("squad_train nq_train", "squad_test"),
}


@pytest.mark.parametrize(("trained", "held_out"), SPLITS.values(), ids=SPLITS)
def test_held_out_splits_are_found(trained: str, held_out: str) -> None:
    expected = held_out.split()
    assert find_held_out([*trained.split(), *expected]) == expected
    assert find_held_out([*expected, *trained.split()]) == expected
    assert find_held_out(trained.split()) == []


@pytest.mark.parametrize(
    "names",
    [
        "math test_of_time",
        "development_economics web",
        "development_economics test_of_time",
        "train_delays test_of_time",
        "attested latest training_logs",
        "test",
    ],
)
def test_sources_are_no_splits(names: str) -> None:
    assert find_held_out(names.split()) == []
