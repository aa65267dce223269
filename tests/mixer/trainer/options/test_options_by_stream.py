"""Options that touch the loss, the gradient or the step: streams are told apart beside them, and weights are right.

Each step has all samples of both streams, cut into micro-batches. So the Trainer, given all of them in one batch, has
to make the same steps, and the loss of a stream has to be that of its data set at the weights that the step found.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, default_collate
from transformers import Trainer, TrainerCallback

from docs.site.options_page import option_names
from mixer import MixingTrainer
from tests.helpers import MODEL_DATA, Tokens, arguments, build_model, weights_of

COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "label smoothing": {"label_smoothing_factor": 0.2},
    "clipping": {"max_grad_norm": 0.05},
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    "reentrant checkpointing": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "compiled": COMPILED,
    "compiled and smoothed": {**COMPILED, "label_smoothing_factor": 0.2},
    "noise on embeddings": {"neftune_noise_alpha": 1e-6},
    "adamw": {"optim": "adamw_torch", "learning_rate": 1e-3, "adam_epsilon": 1e-3},
    "fused adamw": {"optim": "adamw_torch_fused", "learning_rate": 1e-3, "adam_epsilon": 1e-3},
    "adafactor": {"optim": "adafactor", "learning_rate": 1e-3},
    "evaluation first": {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 2},
    "tokens of this device": {"average_tokens_across_devices": False},
    "found batch size": {"auto_find_batch_size": True},
}
# By default the causal model. Compiled, it is left out with smoothing: there the Trainer forgets to shift its labels.
MODELS = {name: ("llama", "bert-classifier") for name in CASES if name in ("plain", "label smoothing", "bf16")}
MODELS["compiled and smoothed"] = ("bert-classifier",)
QUICK = {"plain", "label smoothing", "clipping", "checkpointing", "compiled and smoothed", "found batch size"}


class _Reference(TrainerCallback):  # type: ignore[misc]
    """Computes, before each step, the loss of every data set at once, as the Trainer would."""

    def __init__(self, trainer: Trainer, streams: dict[str, Tokens]):
        self.trainer, self.losses = trainer, []
        self.batches = [default_collate([*data]) for data in streams.values()]  # type: ignore[call-overload]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        plain = getattr(model, "_orig_mod", model)
        with torch.no_grad(), self.trainer.compute_loss_context_manager():
            self.losses += [float(self.trainer.compute_loss(plain, dict(batch))) for batch in self.batches]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(name, model, marks=[] if name in QUICK else pytest.mark.full)
        for name in CASES
        for model in MODELS.get(name, ("llama",))
    ],
)
def test_steps_and_losses_are_those_of_whole_data_sets(name: str, model: str, tmp_path: Path) -> None:
    changes = CASES[name]
    if not changes.keys() <= set(option_names()):
        pytest.skip("not in this version of transformers")
    streams = {key: Tokens(size, seed, MODEL_DATA[model]) for key, size, seed in (("a", 9, 1), ("b", 6, 2))}
    options = {"learning_rate": 0.05, "lr_scheduler_type": "constant", **changes}

    def made(kind: Any, size: int, data: Any, sampling: str = "random", **fields: Any) -> Any:
        own = {"per_device_train_batch_size": size, "train_sampling_strategy": sampling, **options}
        args = arguments(tmp_path / str(size), **own)
        return kind(build_model(model), args, train_dataset=data, eval_dataset=streams, **fields)

    whole = made(Trainer, 15, ConcatDataset([*streams.values()]), "sequential")
    whole.train()
    reference = _Reference(made(Trainer, 8, None), streams)
    ours = made(MixingTrainer, 4, streams, batch_size=15, callbacks=[reference])
    ours.train()
    tolerance = 2e-2 if "bf16" in changes else 2e-5
    assert ours.ledger.timings()["micro_batches"].tolist() == [4, 4, 4]
    assert ours.ledger.to_pandas()["loss"].tolist() == pytest.approx(reference.losses, rel=tolerance)
    torch.testing.assert_close(weights_of(ours.model), weights_of(whole.model), rtol=0, atol=tolerance)
    assert (weights_of(ours.model) - weights_of(build_model(model))).abs().max() > 1e-4
    logged = [[entry["loss"] for entry in trainer.state.log_history if "loss" in entry] for trainer in (ours, whole)]
    assert logged[0] == pytest.approx(logged[1], rel=tolerance)
