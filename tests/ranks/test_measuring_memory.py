"""Memory that runs out on one of two ranks in a measurement between steps, with shards of the weights and without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from mixer import MixingTrainer
from mixer.gradients.metric import OptimizerMetric
from mixer.measurements import Alignment
from tests.helpers import Tokens, arguments, build_model, three_streams
from tests.mixer.measurements.test_targets import Aligned
from tests.ranks.engines import as_on_gpus, fsdp
from tests.ranks.warm import Results, launched

PLACES: dict[str, Callable[[Any], Any]] = {
    "first layer": lambda model: model.model.layers[0].mlp,
    "last layer": lambda model: model.model.layers[-1].self_attn,
    "head": lambda model: model.lm_head,
}
# Of rank 1, the rows from which a forward without gradients fails there: of two rows, so that it is repeated; of one.
CASES = [("none", 9), *((place, fails_from) for place in PLACES for fails_from in (2, 1)), ("copy", 1)]


def run(folder: Path, engine: dict[str, Any], place: str, fails_from: int) -> list[Any]:
    """The alignment that is seen, the squared norm of the weights at the end, and how many measurements failed."""
    model, policy, failures = build_model("llama"), Aligned(test_losses=True), []
    names = [name for name, _ in model.named_parameters()]

    def fail(rows: int) -> None:
        if dist.get_rank() == 1 and rows >= fails_from and not torch.is_grad_enabled():
            failures.append(rows)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    if place in PLACES:
        module = PLACES[place](model)
        forward = module.forward

        def forward_or_fail(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            fail(len(hidden_states))
            return forward(hidden_states, *args, **kwargs)

        module.forward = forward_or_fail
    args = arguments(folder, max_steps=4, per_device_train_batch_size=2, optim="adamw_torch", **engine)
    trainer = MixingTrainer(
        model, args, train_dataset=three_streams(), eval_dataset={"t": Tokens(20, 9)}, objective=["t"], mixing=policy
    )
    with pytest.MonkeyPatch.context() as patch:
        if place == "copy":
            scale = OptimizerMetric.scale

            def scale_or_fail(*given: Any) -> None:
                with torch.no_grad():
                    fail(1)
                scale(*given)

            patch.setattr(OptimizerMetric, "scale", scale_or_fail)
        trainer.train()
    found = dict(trainer.model.named_parameters())
    whole = [getattr(found[name].detach(), "full_tensor", lambda own=found[name]: own)() for name in names]
    seen = [observation[Alignment] for observation in policy.seen]
    alignment = [None if one is None else one.alignment.ravel().tolist() for one in seen]
    return [alignment, sum(float(own.double().square().sum()) for own in whole), len(failures)]


def in_shards(folder: Path) -> dict[str, Any]:
    with as_on_gpus():
        return {f"{place} {rows}": run(folder / f"{place}{rows}", fsdp(), place, rows) for place, rows in CASES}


def whole(folder: Path) -> dict[str, Any]:
    own = [("none", 9), ("last layer", 2), ("last layer", 1), ("copy", 1)]
    return {f"{place} {rows}": run(folder / f"own {place}{rows}", {}, place, rows) for place, rows in own}


results = launched(in_shards, whole)


@pytest.mark.parametrize("engine", ["in_shards", "whole"])
def test_a_measurement_that_does_not_fit_is_repeated_or_left_out_and_the_run_goes_on(
    results: Results, engine: str
) -> None:
    for rank, own in enumerate(results):
        expected, weights, _ = own[engine]["none 9"]
        assert [one is not None for one in expected] == [False, True, False, True]
        for case, (alignment, squares, num_failures) in own[engine].items():
            assert squares == pytest.approx(weights, rel=1e-9)  # measuring changes nothing
            assert (num_failures > 0) == (rank == 1 and case != "none 9")
            if case.endswith(" 1"):
                assert alignment == [None] * 4
                continue
            for one, other in zip(alignment, expected, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * np.abs(other).max())
