"""Which steps are probed, what a probe leaves alone, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mixer import BalancedPiKE, Floor, PiKE, Probing, Uniform, schedules
from mixer.run.probing import resolve_probing
from tests.helpers import Tokens, build_model, weights_of
from tests.mixer.probed import BIG, assert_found, build, is_untouched, steps_of, train
from tests.refusals import refused


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mixing": Floor(PiKE(2), 0.1)}, [2, 4]),
        ({"mixing": PiKE(2), "probe": Probing(interval_steps=3)}, [2, 3, 4]),
        ({"mixing": PiKE(3), "batch_size": schedules.NoiseScale(interval_steps=2, initial=12, maximum=16)}, [2, 3, 4]),
        ({"batch_size": schedules.NormTest(interval_steps=4, initial=12, maximum=16)}, [4]),
        ({"mixing": Uniform()}, []),  # with a word that nobody asks it
    ],
)
def test_steps_are_probed_after_which_somebody_wants_to_know(changes, expected, tmp_path, caplog) -> None:
    options = {"probe": Probing(), "args": {"max_steps": 4}, "epoch_size": 999, **changes}
    trainer = build(tmp_path, **options)
    trainer.train()
    assert (trainer._parts.probe is None) == ("probe is set, but neither" in caplog.text) == (expected == [])
    assert steps_of(trainer) == expected
    assert trainer.ledger.timings().query("probe_seconds > 0")["step"].tolist() == expected
    assert is_untouched(trainer.model)
    own = {"gradient_cosine/a/b", "gradient_cosine/a/c"}
    assert [entry["step"] for entry in trainer.state.log_history if own <= set(entry)] == expected


def test_a_variance_is_measured_where_somebody_needs_it() -> None:
    noise, constant, every = schedules.NoiseScale(), schedules.Constant(), Probing(interval_steps=1)
    assert resolve_probing(None, Uniform(), constant, 1) is None
    assert resolve_probing(None, Uniform(), noise, 2) is None  # the ranks show the noise
    assert resolve_probing(None, PiKE(), constant, 2)[2] is True
    assert resolve_probing(every, Uniform(), noise, 1)[2] is True
    assert resolve_probing(Probing(interval_steps=1, variance=False), Uniform(), constant, 1)[2] is False


DEV = {"a": Tokens(5, 9), "b": Tokens(5, 8)}
SAME: dict[str, dict[str, Any]] = {
    "one micro-batch": {"eval_dataset": DEV, "args": {"eval_strategy": "steps", "eval_steps": 1}},
    "sketched": {"args": {"per_device_train_batch_size": 5}},
    "a mean over rows": {"model": "bert-classifier", "args": {"per_device_train_batch_size": 5}},
    "dropout": {"model": "gpt2"},
    "half precision": {"args": {"bf16": True}},
}


@pytest.mark.parametrize("name", SAME)
def test_training_is_the_same_with_and_without(name: str, tmp_path: Path) -> None:
    changes, ends = dict(SAME[name]), []
    for interval in (None, 1):
        if name == "dropout":
            changes["model"] = build_model("gpt2")
            for module in changes["model"].modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.3
        trainer = build(tmp_path / str(interval), probe=Probing(interval_steps=interval), **changes)
        start = weights_of(trainer.model).clone()
        trainer.train()
        losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        seen = trainer.ledger.to_pandas()[["step", "stream", "count", "items", "tokens", "seen"]]
        ends.append((weights_of(trainer.model) - start, losses, seen))
    (moved, losses, seen), (other_moved, other_losses, other_seen) = ends
    assert seen.equals(other_seen)
    assert (moved - other_moved).norm() <= (1e-2 if name == "half precision" else 1e-5) * moved.norm()
    assert losses == pytest.approx(other_losses, rel=1e-6)
    assert len(losses) == (3 if name == "one micro-batch" else 0)


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_an_error_in_a_probed_step_leaves_the_model_as_it_was(place: str, tmp_path: Path) -> None:
    trainer = build(tmp_path, mixing=PiKE(1), args={"max_steps": 2})

    def fail(*_: Any) -> None:
        raise KeyError("lost")

    def fail_later(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(fail)

    handle = trainer.model.model.norm.register_forward_hook(fail if place == "forward" else fail_later)
    with pytest.raises(KeyError):
        trainer.train()
    handle.remove()
    assert is_untouched(trainer.model)
    assert trainer._parts.probe._present is None
    run = train(trainer)
    assert_found(trainer.ledger.gradients(), run.expected)


def test_the_batch_grows_by_the_noise_of_the_streams(tmp_path: Path) -> None:
    schedule = schedules.NormTest(interval_steps=2, eta=0.9, initial=12, maximum=999, max_growth=None)
    trainer = build(tmp_path, batch_size=schedule, probe=Probing(sketch_size=BIG), epoch_size=9999)
    run = train(trainer)
    signal, noise = run.expected[2].noise
    assert signal > 0
    expected = max(12, math.ceil(noise / signal / 0.81))
    assert trainer.ledger.clock()["batch_size"].tolist() == [12, 12, pytest.approx(expected, abs=1)]
    assert expected > 12


EXACT, NO_VARIANCE, NOISE = Probing(1, mode="exact"), Probing(variance=False), schedules.NoiseScale
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"probe": NO_VARIANCE, "mixing": PiKE()}, "probe.variance"),
    ({"probe": NO_VARIANCE, "batch_size": NOISE()}, "probe.variance"),
    ({"probe": Probing(1, layers=["nothing"])}, "layers"),
    ({"probe": EXACT, "batch_size": 17}, "probe.mode"),
    ({"probe": EXACT, "batch_size": NOISE(initial=12)}, "probe.mode"),
    ({"probe": EXACT, "max_tokens_per_micro_batch": 500}, "probe.mode"),
    ({"probe": Probing(1, mode="exact", homogeneous=True)}, "probe.mode"),
    ({"probe": EXACT, "mixing": BalancedPiKE(uses_loss_weights=True)}, "probe.mode"),
    ({"probe": {"mode": "sketch"}}, "probe"),
]


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"interval_steps": True}, "probe.interval_steps"),
        ({"mode": "fast"}, "probe.mode"),
        ({"sketch_size": 0}, "probe.sketch_size"),
        ({"layers": "*.mlp.*"}, "probe.layers"),
        ({"layers": []}, "probe.layers"),
    ],
)
def test_options_outside_their_range(values: dict[str, Any], option: str) -> None:
    with refused(option):
        Probing(**values)


@pytest.mark.parametrize(("changes", "option"), REFUSED)
def test_what_cannot_be_is_refused(changes: dict[str, Any], option: str, tmp_path: Path) -> None:
    with refused(option, kind=(ValueError, TypeError)):
        build(tmp_path, **changes)
