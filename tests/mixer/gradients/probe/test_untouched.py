"""Before and after a probed step the model is as ever, and nothing is kept alive."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import build
from tests.mixer.gradients.probe.reference import Case, expected_of

KINDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "sketch": {"mode": "sketch"},
    "whole": {"homogeneous": True, "exact_accumulate": True},
}
of_each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def _build(name: str = "gpt2") -> Case:
    case = build(name)
    case.stream_ids = [0] * case.num_rows  # fits homogeneous micro-batches too
    return case


def assert_untouched(model: nn.Module) -> None:
    for module in model.modules():
        assert "forward" not in module.__dict__
        assert not any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks))
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert type(parameter) is nn.Parameter


class _BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise RuntimeError("out of luck")


@pytest.mark.parametrize("stage", ["start", "forward", "backward", "finish"])
@of_each_kind
def test_after_a_failure_the_model_is_untouched(options, stage, monkeypatch) -> None:
    case = _build()
    expected, probe = expected_of(case), GradientProbe(case.model, 3, **options)
    assert_untouched(case.model)
    probe.start(case.stream_ids, case.items)
    if stage == "forward":
        with pytest.raises(IndexError):
            case.model(input_ids=torch.tensor([[1, 999]] * case.num_rows))
    elif stage == "backward":
        handle = case.model.transformer.h[0].register_forward_hook(lambda *args: _BrokenBackward.apply(args[2]))
        logits = case.model(input_ids=case.batch["input_ids"]).logits
        handle.remove()
        with pytest.raises(RuntimeError):
            logits.sum().backward()
    elif stage == "finish" and "homogeneous" not in options:
        case.loss().backward()
        with monkeypatch.context() as patch:
            patch.setattr("mixer.gradients.probe.reading.Reading.close", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                probe.finish()
        assert_untouched(case.model)
    for _ in range(2):  # as often as one likes
        probe.cancel()
        assert_untouched(case.model)
    found = case.probed(probe)
    assert_untouched(case.model)
    if options.get("mode") != "sketch":
        assert found.gram[0, 0] == pytest.approx(expected.gram[0, 0], rel=1e-5)
