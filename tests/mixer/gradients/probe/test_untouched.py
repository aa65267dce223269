"""Before and after a probed step the model is as ever, and nothing is kept alive."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import Tensor, nn

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import Mlp, build
from tests.mixer.gradients.probe.reference import Case, assert_equal, assert_same_gradients, expected_of, gradients_of

KINDS = {"exact": {}, "sketch": {"mode": "sketch"}, "whole": {"homogeneous": True, "exact_accumulate": True}}


def _build() -> Case:
    case = build("gpt2")
    case.stream_ids = [0] * case.num_rows  # fits homogeneous micro-batches too
    return case


def assert_untouched(model: nn.Module) -> None:
    for module in model.modules():
        assert "forward" not in module.__dict__
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert type(parameter) is nn.Parameter


class _BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        raise RuntimeError("out of luck")


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
class TestUntouched:
    def test_after_it_was_made_and_after_it_has_finished(self, options) -> None:
        case = _build()
        probe = GradientProbe(case.model, 3, **options)
        assert_untouched(case.model)
        for _ in range(2):
            case.probed(probe)
            assert_untouched(case.model)

    @pytest.mark.parametrize("stage", ["start", "forward", "backward"])
    def test_after_a_failure_and_cancel(self, options, stage: str) -> None:
        case = _build()
        expected = expected_of(case)
        probe = GradientProbe(case.model, 3, **options)
        probe.start(case.stream_ids, case.items)
        if stage == "forward":
            with pytest.raises(IndexError):
                case.model(input_ids=torch.tensor([[1, 999]] * case.num_rows))
        elif stage == "backward":
            logits = case.model(input_ids=case.batch["input_ids"]).logits
            state = case.model.transformer.h[0].register_forward_hook(lambda *args: _BrokenBackward.apply(args[2]))
            logits = logits + case.model(input_ids=case.batch["input_ids"]).logits
            state.remove()
            with pytest.raises(RuntimeError, match="out of luck"):
                logits.sum().backward()
        probe.cancel()
        assert_untouched(case.model)
        probe.cancel()  # as often as one likes
        if options.get("mode") != "sketch":
            found = case.probed(probe)
            assert found.gram[0, 0] == pytest.approx(expected.gram[0, 0], rel=1e-5)

    def test_copies_made_in_between_are_models_of_their_own(self, options) -> None:
        case = _build()
        probe = GradientProbe(case.model, 3, **options)
        probe.start(case.stream_ids, case.items)
        stream = io.BytesIO()
        torch.save(case.model, stream)
        stream.seek(0)
        copies = [copy.deepcopy(case.model), torch.load(stream, weights_only=False)]
        case.loss().backward()
        probe.finish()
        plain = gradients_of(case.model)
        for one in copies:
            with torch.no_grad():
                for parameter in case.model.parameters():
                    parameter.mul_(0.5)  # a copy does not look at the original
            case.loss(model=one).backward()
            assert_same_gradients(gradients_of(one), plain)
            copied = Case(one, case.batch, case.losses, case.items, case.stream_ids)
            assert copied.probed(GradientProbe(one, 3, **options)).counts[0] > 0
            assert_untouched(one)

    def test_copies_made_afterwards(self, options) -> None:
        case = _build()
        case.probed(GradientProbe(case.model, 3, **options))
        stream = io.BytesIO()
        torch.save(case.model, stream)
        assert_untouched(copy.deepcopy(case.model))

    def test_neither_model_nor_probe_is_kept_alive(self, options) -> None:
        case = _build()
        probe = GradientProbe(case.model, 3, **options)
        found = case.probed(probe)
        model, probes = weakref.ref(case.model), weakref.ref(probe)
        gc.collect()
        gc.disable()
        try:
            del probe
            assert probes() is None  # without cycles, at once
        finally:
            gc.enable()
        del case
        gc.collect()
        assert model() is None
        assert found.counts[0] > 0

    @pytest.mark.parametrize("is_cancelled", [False, True])
    def test_a_loss_that_is_kept_keeps_no_activations(self, options, is_cancelled: bool) -> None:
        case = build("albert")
        case.stream_ids = [0] * case.num_rows
        activations: list[weakref.ref[Tensor]] = []

        def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            activations.append(weakref.ref(output.untyped_storage()))

        handles = [m.register_forward_hook(note) for m in case.model.modules() if isinstance(m, nn.Linear)]
        gc.collect()
        gc.disable()
        try:
            probe = GradientProbe(case.model, 3, **options)
            probe.start(case.stream_ids, case.items)
            loss = case.loss()
            loss.backward()
            probe.cancel() if is_cancelled else probe.finish()
            assert len(activations) > 5
            assert not any(one() is not None for one in activations)
        finally:
            gc.enable()
        assert loss.item() > 0
        for handle in handles:
            handle.remove()


def test_a_step_that_is_not_probed_runs_the_plain_code(monkeypatch) -> None:
    case = build("mlp")
    probe = GradientProbe(case.model, 3)
    case.probed(probe)
    from mixer.gradients.probe.layers.captures import Capture

    def fail(*args: object) -> None:
        raise AssertionError("a layer was run by the probe")

    monkeypatch.setattr(Capture, "__call__", fail)
    case.loss().backward()


def test_hooks_of_others_run_while_it_is_probed() -> None:
    case, seen = build("mlp"), []
    case.model.layers[0].register_forward_pre_hook(lambda *args: seen.append("before"))
    case.model.layers[0].register_forward_hook(lambda *args: seen.append("after"))
    case.probed(GradientProbe(case.model, 3))
    assert seen == ["before", "after"]


def test_a_layer_in_whose_place_something_else_runs_is_left_alone() -> None:
    model = Mlp(5, 8, 4)
    own = model.layers[0].forward
    model.layers[0].forward = lambda inputs: 2.0 * own(inputs)
    probe = GradientProbe(model, 3)
    assert probe.coverage < 0.6
    probe.start([0, 1])
    model(torch.randn(2, 5)).sum().backward()
    probe.finish()
    assert "forward" in model.layers[0].__dict__


def test_an_error_in_finish_leaves_the_model_untouched(monkeypatch) -> None:
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
