"""Units in which policies compare the losses of streams."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixer
from mixer import GroupDRO, Head, LossChange, MixingTrainer, MultiTaskModel, OverfitGuard, Stream, Uniform
from mixer.loading.chosen_loss_units import labels_of, new_loss_units
from mixer.measurements import Loss
from mixer.mixture.loss_units import LossUnits
from tests.helpers import Tokens, arguments, build_model, mixing_trainer
from tests.mixer.comparing import Watching
from tests.refusals import refused

NAN = float("nan")


def rows(*labels: Any) -> list[dict[str, Any]]:
    return [{"input_ids": [1, 2], "labels": label} for label in labels]


TWO, SIX = Stream("two", rows(0, 1, 0, 1)), Stream("six", rows(*range(6)))
NUMBERS, TEXT = Stream("numbers", rows(0.5, 1.5)), Stream("text", rows([1, 2], [3, 4]))


def test_the_entropy_of_labels_is_the_loss_of_one_who_knows_their_frequencies() -> None:
    assert labels_of(TWO) == (2, pytest.approx(math.log(2)))
    assert labels_of(SIX) == (6, pytest.approx(math.log(6)))
    assert labels_of(Stream("x", rows(0, 0, 0, 1))) == (
        2,
        pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)),
    )
    assert labels_of(Stream("x", [{"class": np.int64(1)}, {"class": np.array(2)}], label_names=["class"]))[0] == 2
    assert labels_of(Stream("x", rows(0, 1), preprocess=lambda row: {**row, "labels": 7})) == (1, 0.0)
    assert (labels_of(NUMBERS), labels_of(TEXT), labels_of(Stream("x", iter_only()))) == (None, None, None)


def iter_only() -> Any:
    class Rows:
        def __iter__(self) -> Any:
            return iter(rows(0, 1))

    return Rows()


@pytest.mark.parametrize(
    ("given", "streams", "has_heads", "expected"),
    [
        (None, [TWO, SIX], False, [math.log(2), math.log(6)]),
        (None, [TWO, Stream("b", rows(1, 0))], False, None),
        (None, [TWO, Stream("b", rows(1, 0))], True, [math.log(2)] * 2),
        (None, [TWO, NUMBERS], True, [NAN, NAN]),  # first losses
        (None, [TEXT, Stream("b", rows([1]))], False, None),
        ("none", [TWO, SIX], True, None),
        ("initial", [TEXT, TWO], False, [NAN, NAN]),
        ("entropy", [TWO, Stream("b", rows(1, 0))], False, [math.log(2)] * 2),
        ({"six": 1.5, "two": 0.5}, [TWO, SIX], False, [0.5, 1.5]),
    ],
)
def test_units_are_those_asked_for_and_by_default_where_tasks_differ(given, streams, has_heads, expected) -> None:
    found = new_loss_units(given, GroupDRO(), streams, has_heads)
    assert (found is None) == (expected is None)
    if found is not None:
        np.testing.assert_allclose(found.units, expected)
    assert new_loss_units(given, Uniform(), streams, has_heads) is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("share", ValueError),
        (3, TypeError),
        ({"two": 1.0}, ValueError),
        ({"two": 1.0, "numbers": 0.0}, ValueError),
        ("entropy", ValueError),
    ],
)
def test_wrong_units_are_refused(given: Any, error: type[Exception]) -> None:
    with refused("loss_units", kind=error):
        new_loss_units(given, GroupDRO(), [TWO, NUMBERS], False)


def test_first_losses_are_units_from_the_first_on_and_after_a_resume() -> None:
    units = LossUnits(2)
    for losses, expected in (([2.0, NAN], [1.0, NAN]), ([1.0, 4.0], [0.5, 1.0]), ([1.0, 1.0], [0.5, 0.25])):
        np.testing.assert_array_equal(units.in_units({Loss: np.array(losses)})[Loss], expected)
    other = LossUnits(2)
    other.load_state_dict(json.loads(json.dumps(units.state_dict())))
    assert other.units.tolist() == [2.0, 4.0]
    units.start()
    assert np.isnan(units.units).all()
    for state in ({"units": [1.0]}, {"units": ["x", 1.0]}, {}):
        with pytest.raises((ValueError, KeyError)):
            other.load_state_dict(state)


def test_policies_say_what_they_compare() -> None:
    comparing = {name for name, kind in mixer.policies.policy_classes().items() if kind.compares_losses}
    assert comparing == {"GroupDRO", "LossChange", "BalancedPiKE", "ODM", "ADO", "SkillIt"}
    assert OverfitGuard(LossChange()).compares_losses


def test_a_policy_sees_losses_in_their_units_and_the_ledger_as_they_are(tmp_path: Path) -> None:
    kind = "sequence-classification"
    bert = build_model("bert-classifier").bert
    model = MultiTaskModel.from_encoder(bert, {"a": Head(3), "b": Head(3)})
    policy = Watching(Loss())
    policy.compares_losses = True
    args = arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    data = {"a": Tokens(20, 1, kind), "b": Tokens(20, 2, kind)}
    trainer = mixing_trainer(MixingTrainer, model, args, train_dataset=data, mixing=policy, loss_units="initial")
    trainer.train()
    ledger = trainer.ledger.to_pandas().pivot_table(index="step", columns="stream", values="loss").to_numpy()
    seen = np.array([observation[Loss] for observation in policy.seen])
    np.testing.assert_allclose(seen, ledger / ledger[0], rtol=1e-6)
    assert trainer.describe_run()["loss_units"] == pytest.approx(ledger[0].tolist())
    resumed = Watching(Loss())
    resumed.compares_losses = True
    again = mixing_trainer(MixingTrainer, model, args, train_dataset=data, mixing=resumed, loss_units="initial")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    np.testing.assert_array_equal([o[Loss] for o in resumed.seen], seen[2:])
