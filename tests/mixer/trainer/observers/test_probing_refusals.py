"""What a trainer is told of its probe, and cannot do, is refused at construction."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from mixer import AdaptiveBatchSizeTrainer, BalancedPiKE, PiKE, Probing, schedules
from tests.helpers import arguments, build_model, three_streams
from tests.mixer.probed import assert_found, build, steps_of, train


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"interval_steps": 0}, r"probe.interval_steps must be a whole number of at least 1, or None, got 0"),
        ({"interval_steps": 2.5}, r"probe.interval_steps must be a whole number of at least 1, or None, got 2.5"),
        ({"interval_steps": True}, r"probe.interval_steps must be a whole number"),
        ({"mode": "fast"}, r"probe.mode must be 'auto', 'exact' or 'sketch', got 'fast'"),
        ({"sketch_size": 0}, r"probe.sketch_size must be a whole number of at least 1, got 0"),
        ({"layers": "*.mlp.*"}, r"probe.layers must be a list of patterns, got .*\['\*.mlp.\*'\]"),
        ({"layers": []}, r"probe.layers must be a list of patterns, .* None for all layers"),
    ],
)
def test_options_outside_their_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Probing(**values)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"probe": Probing(variance=False), "mixing": PiKE()}, "probe.variance=False, but mixing=PiKE needs"),
    (
        {"probe": Probing(variance=False), "batch_size": schedules.NoiseScale()},
        "probe.variance=False, but batch_size=NoiseScale needs",
    ),
    (
        {"probe": Probing(1, layers=["nothing"])},
        r"layers=\['nothing'\] matches no trainable parameter; layers are named",
    ),
    ({"probe": Probing(1, mode="exact"), "batch_size": 17}, r"probe.mode='exact'.*per_device_train_batch_size=16"),
    (
        {"probe": Probing(1, mode="exact"), "batch_size": schedules.NoiseScale(initial=12)},
        r"probe.mode='exact'.*may grow beyond",
    ),
    (
        {"probe": Probing(1, mode="exact"), "max_tokens_per_micro_batch": 500},
        r"probe.mode='exact'.*max_tokens_per_micro_batch",
    ),
    ({"probe": Probing(1, mode="exact", homogeneous=True)}, r"probe.mode='exact'.*homogeneous=True"),
    (
        {"probe": Probing(mode="exact"), "mixing": BalancedPiKE(uses_loss_weights=True)},
        r"probe.mode='exact'.*weights losses",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_be_is_refused_at_construction(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        build(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 16},
        {"batch_size": 8, "args": {"per_device_train_batch_size": 8}},
        {"batch_size": None},
        {"batch_size": schedules.NoiseScale(initial=12, maximum=16)},
    ],
)
def test_an_exact_probe_of_one_micro_batch_is_not_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    run = train(build(tmp_path, probe=Probing(1, mode="exact"), **changes))
    assert_found(run.trainer.ledger.gradients(), run.expected)


def test_a_model_without_known_layers_is_refused_with_the_way_out(tmp_path: Path) -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(1, 3, 12)

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
            logits = self.layer(input_ids[:, None].float() / 64).squeeze(2)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    data = three_streams("sequence-classification")
    with pytest.raises(ValueError, match=r"None of the layers can be read.*\['Conv1d'\].*Use homogeneous=True"):
        build(tmp_path, model=Convolution(), train_dataset=data)
    trainer = build(tmp_path, model=Convolution(), train_dataset=data, probe=Probing(1, homogeneous=True))
    trainer.train()
    assert steps_of(trainer) == [1, 2, 3]


def test_a_probe_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"probe must be a Probing, such as Probing\(interval_steps=10\), got a dict"):
        build(tmp_path, probe={"mode": "sketch"})


def test_a_trainer_of_batch_sizes_can_probe_too(tmp_path: Path) -> None:
    trainer = AdaptiveBatchSizeTrainer(
        lambda step, size: 4 + step,
        None,
        build_model("llama"),
        arguments(tmp_path),
        train_dataset=three_streams(),
        mixing=PiKE(1),
    )
    trainer.train()
    assert steps_of(trainer) == [1, 2, 3]
