"""Which steps are probed, what a probe leaves alone, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from mixer import (
    BalancedPiKE,
    Floor,
    MixingTrainer,
    PiKE,
    Probing,
    Uniform,
    schedules,
)
from mixer.trainer.observers.gradient_options import resolve_probing
from tests.helpers import Tokens, arguments, build_model, three_streams, weights_of
from tests.mixer.probed import BIG, assert_found, build, is_untouched, steps_of, train

# ---- Which steps ----


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mixing": PiKE(3)}, [3, 6]),
        ({"mixing": Floor(PiKE(2), 0.1)}, [2, 4, 6]),
        ({"mixing": PiKE(2), "probe": Probing(interval_steps=3)}, [2, 3, 4, 6]),
        (
            {"mixing": PiKE(3), "batch_size": schedules.NoiseScale(interval_steps=2, initial=12, maximum=16)},
            [2, 3, 4, 6],
        ),
        ({"batch_size": schedules.NormTest(interval_steps=4, initial=12, maximum=16)}, [4]),
        ({"probe": Probing(interval_steps=5)}, [5]),
    ],
)
def test_steps_are_probed_after_which_somebody_wants_to_know(
    changes: dict[str, Any], expected: list[int], tmp_path: Path
) -> None:
    trainer = build(tmp_path, **{"probe": Probing(), "args": {"max_steps": 6}, "epoch_size": 999, **changes})
    trainer.train()
    assert steps_of(trainer) == expected
    batches = trainer.ledger.timings()
    assert batches.query("probe_seconds > 0")["step"].tolist() == expected
    logged = [entry["step"] for entry in trainer.state.log_history if any(key.startswith("gradient_") for key in entry)]
    assert logged == expected


def test_nothing_is_probed_for_who_needs_nothing(tmp_path: Path) -> None:
    trainer = MixingTrainer(build_model("llama"), arguments(tmp_path), train_dataset=three_streams(), mixing=Uniform())
    trainer.train()
    assert trainer._parts.probe is None
    assert trainer.ledger.gradients().empty
    assert (trainer.ledger.timings()["probe_seconds"] == 0.0).all()
    assert is_untouched(trainer.model)


def test_a_variance_is_measured_where_somebody_needs_it() -> None:
    noise = schedules.NoiseScale()
    constant = schedules.Constant()
    every = Probing(interval_steps=1)
    assert resolve_probing(None, Uniform(), constant, 1) is None
    assert resolve_probing(None, Uniform(), noise, 2) is None  # the ranks show the noise
    assert [resolve_probing(*given)[2] for given in [(None, PiKE(), constant, 2), (every, Uniform(), noise, 1)]] == [
        True,
        True,
    ]
    cheap = Probing(interval_steps=1, variance=False)
    assert resolve_probing(cheap, Uniform(), constant, 1)[2] is False


def test_who_gives_a_probe_that_nobody_asks_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, probe=Probing(mode="sketch"))
    assert "probe is set, but neither" in caplog.text
    assert "set probe.interval_steps" in caplog.text


# ---- What is left alone ----

SAME: dict[str, dict[str, Any]] = {
    "one micro-batch": {},
    "sketched": {"args": {"per_device_train_batch_size": 5}},
    "a mean over rows": {"model": "bert-classifier", "args": {"per_device_train_batch_size": 5}},
    "gpt2": {"model": "gpt2"},
    "half precision": {"args": {"bf16": True}},
}


@pytest.mark.parametrize("name", SAME)
def test_training_is_the_same_with_and_without(name: str, tmp_path: Path) -> None:
    weights, seen = [], []
    for interval in (None, 1):
        changes = {**SAME[name], "args": {"max_steps": 6, **SAME[name].get("args", {})}}
        trainer = build(tmp_path / str(interval), probe=Probing(interval_steps=interval), **changes)
        start = weights_of(trainer.model).clone()
        trainer.train()
        weights.append(weights_of(trainer.model) - start)
        seen.append(trainer.ledger.to_pandas()[["step", "stream", "count", "items", "tokens", "seen"]])
    assert seen[0].equals(seen[1])
    assert (weights[0] - weights[1]).norm() <= (1e-2 if name == "half precision" else 1e-5) * weights[0].norm()


def test_dropout_draws_the_same_with_and_without(tmp_path: Path) -> None:
    ends = []
    for interval in (None, 1):
        model = build_model("gpt2")
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.3
        trainer = build(tmp_path / str(interval), model=model, probe=Probing(interval_steps=interval))
        trainer.train()
        ends.append(weights_of(trainer.model))
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


def test_an_error_in_a_probed_step_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    for place in ("forward", "backward"):
        trainer = build(tmp_path / place, mixing=PiKE(1))

        def fail(*_: Any) -> None:
            raise KeyError("lost")

        def fail_later(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.register_hook(fail)

        handle = trainer.model.model.norm.register_forward_hook(fail if place == "forward" else fail_later)
        with pytest.raises(KeyError, match="lost"):
            trainer.train()
        handle.remove()
        assert is_untouched(trainer.model)
        assert trainer._parts.probe._present is None
        run = train(trainer)
        assert_found(trainer.ledger.gradients(), run.expected)


def test_evaluations_between_are_what_they_are(tmp_path: Path) -> None:
    logs = []
    for interval in (None, 1):
        trainer = build(
            tmp_path / str(interval),
            probe=Probing(interval_steps=interval),
            eval_dataset={"a": Tokens(5, 9), "b": Tokens(5, 8)},
            args={"eval_strategy": "steps", "eval_steps": 1},
        )
        trainer.train()
        logs.append([entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry])
    assert logs[0] == pytest.approx(logs[1], rel=1e-6)


# ---- Models that change ----


def test_a_second_run_probes_its_own_model(tmp_path: Path) -> None:
    def init() -> nn.Module:
        return build_model("llama")

    args = arguments(tmp_path, per_device_train_batch_size=16)
    trainer = MixingTrainer(
        args=args,
        model_init=init,
        train_dataset=three_streams(),
        mixing=PiKE(1),
        batch_size=12,
    )
    trainer.train()
    first, old = trainer.ledger.gradients(), trainer.model
    run = train(trainer)
    assert trainer.model is not old
    assert not trainer._parts.probe._probes  # nothing holds on to it, or to its sketches
    assert is_untouched(old)
    assert_found(trainer.ledger.gradients(), run.expected)
    assert first["squared_norm"].tolist() == pytest.approx(
        trainer.ledger.gradients()["squared_norm"].tolist(), rel=1e-5
    )


def test_a_compiled_model_runs_uncompiled_where_it_is_probed(tmp_path: Path) -> None:
    args = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 3}
    run = train(build(tmp_path, model="bert-classifier", mixing=PiKE(2), probe=Probing(), args=args))
    assert steps_of(run.trainer) == [2]
    assert_found(run.trainer.ledger.gradients(), run.expected)


def test_callbacks_see_the_entries(tmp_path: Path) -> None:
    class Reader(TrainerCallback):
        def __init__(self) -> None:
            self.entries: list[dict[str, Any]] = []

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            self.entries.append(dict(logs))

    reader = Reader()
    build(tmp_path, mixing=PiKE(2), callbacks=[reader], args={"logging_steps": 3, "max_steps": 3}).train()
    assert {"gradient_cosine/a/b", "gradient_cosine/a/c"} <= set(reader.entries[0])


# ---- Policies that go by it ----


@pytest.mark.parametrize("policy", [PiKE, BalancedPiKE])
def test_what_is_measured_rules_the_next_step(policy: Any, tmp_path: Path) -> None:
    trainer = build(
        tmp_path, mixing=policy(2, interval_steps=2) if policy is BalancedPiKE else policy(2), probe=Probing()
    )
    trainer.train()
    weights = trainer.ledger.to_pandas()["weight"].to_numpy().reshape(3, 3)
    np.testing.assert_allclose(weights[:2], 1 / 3, atol=1e-12)
    assert np.ptp(weights[2]) > 1e-4


def test_the_batch_grows_by_the_noise_of_the_streams(tmp_path: Path) -> None:
    schedule = schedules.NormTest(interval_steps=2, eta=0.9, initial=12, maximum=999, max_growth=None)
    trainer = build(tmp_path, batch_size=schedule, probe=Probing(sketch_size=BIG), epoch_size=9999)
    run = train(trainer)
    signal, noise = run.expected[2].noise
    assert signal > 0
    expected = max(12, math.ceil(noise / signal / 0.81))
    assert trainer.ledger.clock()["batch_size"].tolist() == [12, 12, pytest.approx(expected, abs=1)]
    assert expected > 12


@pytest.mark.parametrize("mixing", [PiKE(1), BalancedPiKE(interval_steps=1), PiKE(1, mode="conceptual")])
def test_a_single_stream_keeps_its_share(mixing: Any, tmp_path: Path) -> None:
    trainer = build(tmp_path, train_dataset=Tokens(20, 1), mixing=mixing)
    trainer.train()
    assert (trainer.ledger.to_pandas()["weight"] == 1.0).all()
