"""What a measurement of targets costs: forwards that targets share, operations, and waits for the device."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from mixer import MixingTrainer, Objective
from mixer.measurements import Alignment
from mixer.measurements.hooks.target_gradients import TargetProbe
from tests.helpers import Tokens, arguments
from tests.mixer.measurements.test_targets import Aligned


def rows(seed: int, num_rows: int = 20, length: int = 6) -> list[dict[str, Any]]:
    """Rows of equal lengths, whose losses have as many items each."""
    ids = torch.randint(1, 32, (num_rows, length), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": own, "labels": own, "attention_mask": torch.ones_like(own)} for own in ids]


def llama(num_layers: int = 1) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=num_layers, use_cache=False))


class Watched(MixingTrainer):
    """Notes the rows of each forward outside of training steps, by whether it has a graph."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not model.training:
            self.forwards[torch.is_grad_enabled()].append(len(inputs["input_ids"]))
        return super().compute_loss(model, inputs, *args, **kwargs)


def trained(
    folder: Path, policy: Any, objective: Any, model: Any = None, data: Any = rows, sets: str = "tu", **args: Any
) -> Watched:
    options: dict[str, Any] = {"max_steps": 2, "optim": "adamw_torch", "per_device_train_batch_size": 32, **args}
    trainer = Watched(
        model or llama(),
        arguments(folder, **options),
        train_dataset={name: data(seed) for seed, name in enumerate("ab")},
        eval_dataset={name: data(9 + seed) for seed, name in enumerate(sets)},
        objective=objective,
        mixing=policy,
    )
    trainer.forwards = {True: [], False: []}
    trainer.train()
    return trainer


def tokens(seed: int) -> Any:
    return Tokens(20, seed)  # of different lengths


@pytest.mark.parametrize(
    ("objective", "data", "backwards"),
    [
        (["t", "u"], rows, [8]),
        ({"t": 3, "u": 1}, rows, [4, 4]),  # the weight of an item is that of its target
        (["t", "u"], tokens, [4, 4]),
    ],
)
def test_rows_of_targets_share_forwards(tmp_path, objective, data, backwards, monkeypatch) -> None:
    seen, new_probe = [], TargetProbe.__init__

    def new_probe_apart(probe: TargetProbe, *given: Any) -> None:
        new_probe(probe, *given)
        probe._joins = False

    # Rows of two streams to find out whether they have losses of their own, and moved; and the same rows each time.
    for name, with_graph, compared in (("joined", backwards, [26]), ("apart", [4, 4], [5, 5, 8, 8])):
        policy = Aligned(joined=True, test_losses=True)
        trainer = trained(tmp_path / name, policy, objective, data=data)
        assert trainer.forwards == {True: with_graph, False: [8, 8, 8, *compared]}
        seen.append(policy.seen[1][Alignment])
        monkeypatch.setattr(TargetProbe, "__init__", new_probe_apart)
    for name in ("losses", "alignment", "error", "test_losses", "gap_error", "stream_losses"):
        np.testing.assert_allclose(*(getattr(one, name) for one in seen), rtol=1e-4, err_msg=name)


def longer(seed: int) -> list[dict[str, Any]]:
    return rows(seed, length=9 if seed == 10 else 6)


def unmasked(seed: int) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if seed != 10 or name != "attention_mask"} for row in rows(seed)]


@pytest.mark.parametrize("data", [longer, unmasked])
def test_rows_that_cannot_be_collated_together_are_collated_by_target(data, tmp_path, monkeypatch) -> None:
    seen, new_probe = [], TargetProbe.__init__

    def new_probe_apart(probe: TargetProbe, *given: Any) -> None:
        new_probe(probe, *given)
        probe._joins = False

    for name in ("joined", "apart"):
        policy = Aligned(joined=True, test_losses=True)
        trainer = trained(tmp_path / name, policy, ["t", "u"], data=data)
        assert trainer.forwards[True] == [4, 4]
        seen.append(policy.seen[1][Alignment])
        monkeypatch.setattr(TargetProbe, "__init__", new_probe_apart)
    np.testing.assert_allclose(seen[0].losses, seen[1].losses, rtol=1e-6)


def test_rows_that_go_back_are_cut_to_what_was_trained_where_that_matters(tmp_path, monkeypatch) -> None:
    seen, new_probe = [], TargetProbe.__init__

    def new_probe_in_shards(probe: TargetProbe, *given: Any) -> None:
        new_probe(probe, *given)
        probe._most_elements = 12  # two rows

    for name, with_graph in (("whole", [8]), ("cut", [2] * 4)):
        policy = Aligned(joined=True)
        assert trained(tmp_path / name, policy, ["t", "u"]).forwards[True] == with_graph
        seen.append(policy.seen[1][Alignment])
        monkeypatch.setattr(TargetProbe, "__init__", new_probe_in_shards)
    np.testing.assert_allclose(*(one.alignment for one in seen), rtol=1e-4)


class Counted(TorchDispatchMode):
    """Counts numbers that the host reads one by one, and operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[function.overloadpacket.__name__] += not function.is_view
        return function(*args, **(kwargs or {}))


class PerStep(TrainerCallback):
    """Takes the counts of each step, with the measurement after it."""

    def __init__(self, counted: Counted):
        self.counted, self.steps = counted, list[Counter[str]]()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps.append(self.counted.names.copy())
        self.counted.names.clear()


def counts(folder: Path, num_layers: int, mixing: Any) -> list[Counter[str]]:
    with Counted() as counted:
        args = arguments(folder, max_steps=6, optim="adamw_torch_fused", per_device_train_batch_size=32)
        trainer = MixingTrainer(
            llama(num_layers),
            args,
            train_dataset={name: rows(seed) for seed, name in enumerate("ab")},
            eval_dataset={"t": rows(9)},
            objective=["t"],
            mixing=mixing,
            callbacks=[per_step := PerStep(counted)],
        )
        trainer.train()
    return per_step.steps


def test_the_host_waits_as_seldom_for_any_number_of_parameters_and_not_between_measurements(tmp_path: Path) -> None:
    plain = counts(tmp_path / "plain", 1, "Uniform")
    found = {layers: counts(tmp_path / str(layers), layers, Aligned(interval_steps=2)) for layers in (1, 4)}
    read = {layers: [step["_local_scalar_dense"] for step in own] for layers, own in found.items()}
    assert read[1] == read[4]
    assert read[1][2::2] == [step["_local_scalar_dense"] for step in plain[2::2]]
    scaled = [found[layers][3] for layers in (1, 4)]
    for name in ("_foreach_lerp_", "_foreach_add_", "_foreach_copy_", "_foreach_sqrt_"):
        assert scaled[0][name] == scaled[1][name] > 0


def test_a_gradient_of_bfloat16_weights_is_kept_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types, direction = set(), TargetProbe._direction

    def noted(probe: TargetProbe, *given: Any) -> Any:
        found, length = direction(probe, *given)
        types.update(part.dtype for part in found)
        return found, length

    monkeypatch.setattr(TargetProbe, "_direction", noted)
    trained(tmp_path, Aligned(), Objective(["t"]), model=llama().bfloat16(), sets="t")
    assert types == {torch.bfloat16}
