"""Before and after a probed step the model is as ever, and nothing is kept alive."""

import copy
import gc
import io
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import build
from tests.mixer.gradients.probe.reference import Case, assert_equal, assert_same_gradients, expected_of, gradients_of

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


@pytest.mark.parametrize("stage", ["start", "forward", "backward"])
@of_each_kind
def test_after_a_failure_and_cancel_the_model_is_untouched(options: dict[str, Any], stage: str) -> None:
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
        with pytest.raises(RuntimeError, match="out of luck"):
            logits.sum().backward()
    for _ in range(2):  # as often as one likes
        probe.cancel()
        assert_untouched(case.model)
    found = case.probed(probe)
    assert_untouched(case.model)
    if options.get("mode") != "sketch":
        assert found.gram[0, 0] == pytest.approx(expected.gram[0, 0], rel=1e-5)


def _copies(model: nn.Module) -> list[nn.Module]:
    torch.save(model, stream := io.BytesIO())
    stream.seek(0)
    return [copy.deepcopy(model), torch.load(stream, weights_only=False)]


@of_each_kind
def test_copies_made_in_between_and_afterwards_are_models_of_their_own(options: dict[str, Any]) -> None:
    case = _build()
    probe = GradientProbe(case.model, 3, **options)
    probe.start(case.stream_ids, case.items)
    copies = _copies(case.model)
    case.loss().backward()
    probe.finish()
    plain = gradients_of(case.model)
    for one in _copies(case.model):
        assert_untouched(one)
    for one in copies:
        with torch.no_grad():
            for parameter in case.model.parameters():
                parameter.mul_(0.5)  # a copy does not look at the original
        case.loss(model=one).backward()
        assert_same_gradients(gradients_of(one), plain)
        copied = Case(one, case.batch, case.losses, case.items, case.stream_ids)
        assert copied.probed(GradientProbe(one, 3, **options)).counts[0] > 0
        assert_untouched(one)


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@of_each_kind
def test_neither_model_nor_probe_is_kept_alive(options: dict[str, Any]) -> None:
    case = _build()
    probe = GradientProbe(case.model, 3, **options)
    found = case.probed(probe)
    model, probes = weakref.ref(case.model), weakref.ref(probe)
    with _without_collector():
        del probe
        assert probes() is None  # without cycles, at once
    del case
    gc.collect()
    assert model() is None
    assert found.counts[0] > 0


@pytest.mark.parametrize("is_cancelled", [False, True])
@of_each_kind
def test_a_loss_that_is_kept_keeps_no_activations(options: dict[str, Any], is_cancelled: bool) -> None:
    case = _build("albert")
    activations: list[weakref.ref[Any]] = []

    def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        activations.append(weakref.ref(output.untyped_storage()))

    for module in case.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(note)
    with _without_collector():
        probe = GradientProbe(case.model, 3, **options)
        probe.start(case.stream_ids, case.items)
        loss = case.loss()
        loss.backward()
        probe.cancel() if is_cancelled else probe.finish()
        assert len(activations) > 5
        assert not any(one() is not None for one in activations)
    assert loss.item() > 0


def test_an_error_in_finish_leaves_the_model_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build("mlp")
    probe = GradientProbe(case.model, 3)
    probe.start(case.stream_ids, case.items)
    case.loss().backward()
    with monkeypatch.context() as patch:
        patch.setattr("mixer.gradients.probe.reading.Reading.close", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            probe.finish()
    assert_untouched(case.model)
    assert_equal(case.probed(probe), expected_of(case))
