"""Half precision, loss scaling, checkpointing and compiled models."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import build
from tests.mixer.gradients.probe.reference import Case, assert_equal, assert_same_gradients, expected_of, gradients_of


def _plain(case: Case, factor: float = 1.0) -> list[Tensor | None]:
    case.model.zero_grad()
    (factor * case.loss()).backward()
    return gradients_of(case.model)


@pytest.mark.parametrize("name", ["gpt2", "llama-tied", "mlp", "albert"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.04), (torch.float16, 0.01)])
def test_autocast_with_a_loss_scale(name: str, dtype: torch.dtype, tolerance: float) -> None:
    case = build(name)
    expected, scale = expected_of(case), 2.0**12
    with torch.autocast("cpu", dtype=dtype):
        plain = _plain(case, scale)
        case.model.zero_grad()
        probe = GradientProbe(case.model, 3)
        probe.start(case.stream_ids, case.items)
        loss = case.loss()
    (scale * loss).backward()
    found = probe.finish(loss_scale=scale)
    assert_same_gradients(gradients_of(case.model), plain, 0.02)
    assert probe.coverage == 1.0
    assert np.isfinite(found.variance[[0, 2]]).all()
    assert_equal(found, expected, tolerance)


@pytest.mark.parametrize("name", ["gpt2", "llama-tied", "mlp"])
@pytest.mark.parametrize("mode", ["exact", "sketch"])
def test_a_model_in_half_precision(name: str, mode: Any) -> None:
    case = build(name, torch.bfloat16)
    plain = _plain(case)
    probe = GradientProbe(case.model, 3, mode, sketch_size=64)  # all of it
    found = case.probed(probe)
    assert_same_gradients(gradients_of(case.model), plain, 0.02)
    assert probe.coverage == 1.0
    assert_equal(found, expected_of(case), 0.03)


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize(("name", "layers"), [("llama-tied", None), ("gpt2", None), ("llama-tied", ["*.mlp.*"])])
def test_gradient_checkpointing(name: str, is_reentrant: bool, layers: list[str] | None) -> None:
    case = build(name)
    expected, plain = case.probed(GradientProbe(case.model, 3, layers=layers)), _plain(case)
    model: Any = case.model
    model.gradient_checkpointing_enable({"use_reentrant": is_reentrant})
    model.enable_input_require_grads()
    probe = GradientProbe(model, 3, layers=layers)
    for _ in range(2):
        assert_equal(case.probed(probe), expected)
    assert_same_gradients(gradients_of(model), plain)


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_probed_step_of_a_compiled_model_runs_uncompiled_and_later_ones_compiled_again(is_whole: bool) -> None:
    torch._dynamo.reset()
    case, num_runs = build("mlp"), []

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            num_runs.append(1)
            return graph(*args)

        return run

    expected, model, plain = expected_of(case), case.model, _plain(case)
    if is_whole:
        case.model = torch.compile(model, backend=backend)
    else:
        model.compile(backend=backend)
    probe = GradientProbe(case.model, 3)
    for _ in range(2):
        num_runs.clear()
        case.loss().backward()
        assert num_runs
        num_runs.clear()
        assert_equal(case.probed(probe), expected)
        assert not num_runs
        assert_same_gradients(gradients_of(model), plain)
