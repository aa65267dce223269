"""What cannot be read is left out, and named."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import IDS, build, language_case, opt, vector_case
from tests.mixer.gradients.probe.reference import (
    Case,
    assert_equal,
    assert_same_gradients,
    expected_of,
    gradients_of,
    parameters_of,
)
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)


class Net(nn.Module):
    def __init__(self, run: Callable[[Any, Tensor], Tensor] | None = None, **parts: Any):
        super().__init__()
        self.first, self.last, self.run = nn.Linear(5, 6), nn.Linear(6, 4), run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.plain(inputs) if self.run is None else self.run(self, inputs)

    def plain(self, inputs: Tensor) -> Any:
        return self.last(self.hidden(inputs))

    def hidden(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.first(inputs))


class OwnRMSNorm(nn.Module):
    def __init__(self, size: int, apply: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.weight, self.apply_to = nn.Parameter(torch.rand(size)), apply

    def forward(self, inputs: Tensor) -> Tensor:
        return self.apply_to(inputs, self.weight)


LAST = ("last.weight", "last.bias")


def case_of(model: nn.Module) -> Case:
    return vector_case(model, IDS, 5, 4)


# What models do, with which parts beside their two layers, and what of them is left out; the rest is read.
MODELS: dict[str, tuple[Callable[[Any, Tensor], Tensor], dict[str, Any], tuple[str, ...]]] = {
    "a parameter of the model": (
        lambda net, x: net.last(net.hidden(x) * net.scale),
        {"scale": nn.Parameter(torch.ones(6))},
        ("scale",),
    ),
    "a weight used behind the back of its layer": (
        lambda net, x: net.plain(x) + 0.3 * linear(net.hidden(x), net.last.weight),
        {},
        ("last.weight",),
    ),
    "a layer that was never called": (lambda net, x: linear(net.hidden(x), *net.last.parameters()), {}, LAST),
    "inputs that do not fall into rows": (lambda net, x: net.plain(x) + net.last(torch.ones(1, 6)), {}, LAST),
    "a norm over as many channels as columns": (
        lambda net, x: net.last(net.norm(net.hidden(x)[:, [*range(6), 0, 0, 0]].view(-1, 3, 3)).flatten(1)[:, :6]),
        {"norm": OwnRMSNorm(3, lambda inputs, weight: inputs * weight[:, None])},
        ("norm.weight",),
    ),
    "a norm of its own kind of scale": (
        lambda net, x: net.last(net.norm(net.first(x))),
        {"norm": OwnRMSNorm(6, lambda inputs, weight: normalize(inputs, dim=-1) * (1.0 + weight))},
        (),
    ),
    "tokens flattened over rows": (
        lambda net, x: net.last(net.hidden(torch.stack([x, -x], 1)).flatten(0, 1)).unflatten(0, (-1, 2)).sum(1),
        {},
        (),
    ),
    "inputs by keyword": (lambda net, x: net.last(input=torch.tanh(net.first(input=x))), {}, ()),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_cannot_be_told_apart_is_named_once_and_the_rest_is_exact(name, caplog) -> None:
    torch.manual_seed(0)
    run, parts, left_out = MODELS[name]
    case = case_of(model := Net(run, **parts))
    case.loss().backward()
    plain = gradients_of(model)
    probe = GradientProbe(model, 3)
    for _ in range(2):
        found = case.probed(probe)
        assert_same_gradients(gradients_of(model), plain)
        assert_equal(found, expected_of(case, parameters_of(model, lambda name: name not in left_out)))
    messages = [record.getMessage() for record in caplog.records if "cannot tell" in record.getMessage()]
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    share = sum(sizes[name] for name in left_out) / sum(sizes.values())
    assert probe.coverage == pytest.approx(1 - share)
    assert len(messages) == (1 if left_out else 0)
    assert all(name in messages[0] for name in left_out)
    assert not left_out or f"{100 * share:.1f} % of the trainable parameters" in messages[0]


def test_a_layer_that_is_skipped_at_first_is_looked_at_when_it_is_used(caplog: pytest.LogCaptureFixture) -> None:
    case = case_of(model := Net(lambda net, inputs: net.hidden(inputs)[:, :4]))
    probe = GradientProbe(model, 3)
    assert_equal(case.probed(probe), expected_of(case))
    assert not caplog.records
    model.run = lambda net, inputs: linear(net.hidden(inputs), net.last.weight)
    assert_equal(case.probed(probe), expected_of(case, parameters_of(model, lambda name: "first" in name)))
    assert "last.weight" in caplog.text


def test_tables_of_positions_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    case = build("t5")
    assert GradientProbe(case.model, 3).coverage < 1.0
    tables = [name for name, _ in case.model.named_parameters() if "relative_attention_bias" in name]
    assert len(tables) == 2
    case, own = language_case(opt()), "model.decoder.embed_positions.weight"
    rest = parameters_of(case.model, lambda name: name != own)
    assert_equal(case.probed(GradientProbe(case.model, 3)), expected_of(case, rest))
    assert all(name in caplog.text for name in (*tables, own))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_what_is_trained_of_a_partly_frozen_layer_is_read(frozen: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Net(lambda net, inputs: net.last(net.norm(net.first(inputs))), norm=nn.LayerNorm(6))
    for layer in (model.norm, model.last):
        getattr(layer, frozen).requires_grad_(False)
    case, probe = case_of(model), GradientProbe(model, 3)
    assert_equal(case.probed(probe), expected_of(case))
    assert not caplog.records
    model.first.requires_grad_(False)  # after the probe was made
    assert_equal(case.probed(probe), expected_of(case))


def test_an_embedding_with_sparse_gradients_is_read() -> None:
    def run(net: Any, inputs: Tensor) -> Any:
        return net.last(net.table((inputs.abs() * 5).long().clamp(max=19)).mean(1))

    model, twin = (Net(run, table=nn.Embedding(20, 6, sparse=is_sparse)) for is_sparse in (True, False))
    case = case_of(model)
    found = case.probed(GradientProbe(model, 3))
    assert model.table.weight.grad.is_sparse
    twin.load_state_dict(model.state_dict())
    case.model = twin
    assert_equal(found, expected_of(case, parameters_of(twin, lambda name: "first" not in name)))


def test_a_model_that_another_probe_reads_is_refused() -> None:
    model = Net()
    other = GradientProbe(model, 2)
    other.start([0, 1])
    with refused("model"):
        GradientProbe(model, 2)
    other.cancel()
    GradientProbe(model, 2)


def test_layers_in_whose_place_something_else_runs_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = Net()
    model.first.forward = lambda inputs: linear(inputs, model.first.weight)  # type: ignore[method-assign]
    probe = GradientProbe(model, 2)
    probe.start([0, 1])
    model(torch.randn(2, 5)).sum().backward()
    probe.finish()
    assert "forward" in model.first.__dict__
    reason = r"Something else (hooks of accelerate?) runs in place of the forward of some ['Linear']"
    assert reason in caplog.text
    model.last.forward = model.first.forward  # type: ignore[method-assign]
    with refused("model"):
        GradientProbe(model, 2)


@pytest.mark.parametrize(
    ("model", "options", "option"),
    [
        (3, {}, "model"),
        (nn.Conv1d(2, 2, 1), {}, "model"),
        (nn.Linear(2, 2).requires_grad_(False), {}, "model"),
        (nn.Sequential(nn.Linear(2, 2)), {"layers": ["*.mlp"]}, "layers"),
    ],
)
def test_a_model_that_cannot_be_read_is_refused(model: Any, options: dict[str, Any], option: str) -> None:
    with refused(option, kind=(ValueError, TypeError)):
        GradientProbe(model, 2, **options)


@pytest.mark.parametrize("options", [{}, {"mode": "sketch"}, {"mode": "sketch", "homogeneous": True}])
def test_a_step_without_a_backward_of_these_rows_is_refused(options: dict[str, Any]) -> None:
    model = Net()
    probe = GradientProbe(model, 2, **options)
    for num_rows in (0, 2) if "homogeneous" in options else (0, 2, 5):
        probe.start([0, 0])
        if num_rows:
            loss = model(torch.randn(num_rows, 5)).sum()
        if num_rows > 2:
            loss.backward()
        with refused("model"):
            probe.finish()


def test_a_loss_that_differentiates_through_gradients_needs_micro_batches_of_one_stream() -> None:
    model, inputs = Net(), torch.randn(2, 5, requires_grad=True)
    probe = GradientProbe(model, 2)
    probe.start([0, 0])
    with pytest.raises(RuntimeError):
        torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
