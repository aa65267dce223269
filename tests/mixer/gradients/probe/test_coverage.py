"""What cannot be read is left out, and named."""

import logging
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import IDS, build, language_case, opt, vector_case
from tests.mixer.gradients.probe.reference import (
    assert_equal,
    assert_same_gradients,
    expected_of,
    gradients_of,
    parameters_of,
)


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)


def _check(model: nn.Module, left_out: tuple[str, ...], caplog, num_in: int = 5, num_out: int = 4) -> None:
    """The rest is read exactly, and the gradients are the plain ones; the warning comes once."""
    case = vector_case(model, IDS, num_in, num_out)
    case.loss().backward()
    plain = gradients_of(model)
    model.zero_grad()
    rest = parameters_of(model, lambda name: name not in left_out)
    probe = GradientProbe(model, 3)
    for _ in range(2):
        found = case.probed(probe)
        assert_same_gradients(gradients_of(model), plain)
        assert_equal(found, expected_of(case, rest))
    messages = [record.getMessage() for record in caplog.records if "cannot tell" in record.getMessage()]
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    missed = sum(sizes[name] for name in left_out)
    assert probe.coverage == pytest.approx(1 - missed / sum(sizes.values()))
    assert len(messages) == (1 if left_out else 0)
    assert all(name in messages[0] for name in left_out)
    assert not left_out or f"{100 * missed / sum(sizes.values()):.1f} % of the trainable parameters" in messages[0]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(inputs)))


class TestLeftOut:
    def test_layers_of_unknown_kind(self, caplog) -> None:
        class Net(_Net):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(6))

            def forward(self, inputs: Tensor) -> Tensor:
                return self.last(torch.tanh(self.first(inputs)) * self.scale)

        _check(Net(), ("scale",), caplog)

    def test_a_weight_used_behind_the_back_of_its_layer(self, caplog) -> None:
        class Net(_Net):
            def forward(self, inputs: Tensor) -> Tensor:
                hidden = torch.tanh(self.first(inputs))
                return self.last(hidden) + 0.3 * nn.functional.linear(hidden, self.last.weight)

        _check(Net(), ("last.weight",), caplog)

    def test_a_penalty_on_a_weight(self, caplog) -> None:
        class Net(_Net):
            def forward(self, inputs: Tensor) -> Tensor:
                return super().forward(inputs) + self.first.weight.square().sum()

        _check(Net(), ("first.weight",), caplog)

    def test_a_layer_that_was_never_called(self, caplog) -> None:
        class Net(_Net):
            def forward(self, inputs: Tensor) -> Tensor:
                return nn.functional.linear(torch.tanh(self.first(inputs)), self.last.weight, self.last.bias)

        _check(Net(), ("last.weight", "last.bias"), caplog)

    def test_the_layers_of_torchs_attention(self, caplog) -> None:
        class Net(_Net):
            def __init__(self) -> None:
                super().__init__()
                self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

            def forward(self, inputs: Tensor) -> Tensor:
                hidden = torch.tanh(self.first(inputs))
                pairs = torch.stack([hidden, hidden.flip(1)], dim=1)
                return self.last(hidden + self.attention(pairs, pairs, pairs)[0][:, 0])

        names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
        model = Net()
        case = vector_case(model, IDS, 5, 4)
        probe = GradientProbe(model, 3)
        rest = parameters_of(model, lambda name: not name.endswith(names))
        assert_equal(case.probed(probe), expected_of(case, rest))
        messages = " ".join(record.getMessage() for record in caplog.records)
        assert all(f"attention.{name}" in messages for name in names)

    def test_a_layer_that_is_skipped_at_first_is_looked_at_when_it_is_used(self, caplog) -> None:
        class Net(_Net):
            is_skipped = True

            def forward(self, inputs: Tensor) -> Tensor:
                hidden = torch.tanh(self.first(inputs))
                return hidden[:, :4] if self.is_skipped else nn.functional.linear(hidden, self.last.weight)

        model = Net()
        case, probe = vector_case(model, IDS, 5, 4), GradientProbe(model, 3)
        assert_equal(case.probed(probe), expected_of(case))
        assert not caplog.records
        model.is_skipped = False
        assert_equal(case.probed(probe), expected_of(case, parameters_of(model, lambda name: "first" in name)))
        assert "last.weight" in caplog.text

    def test_a_layer_whose_inputs_do_not_fall_into_rows(self, caplog) -> None:
        class Net(_Net):
            def forward(self, inputs: Tensor) -> Tensor:
                return super().forward(inputs) + self.last(torch.ones(1, 6))

        _check(Net(), ("last.weight", "last.bias"), caplog)

    @pytest.mark.parametrize("num_channels", [2, 3])
    def test_a_norm_that_takes_its_vector_in_another_way(self, num_channels: int, caplog) -> None:
        class ChannelLayerNorm(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(num_channels))

            def forward(self, inputs: Tensor) -> Tensor:
                return inputs * self.weight[:, None]

        class Net(_Net):
            def __init__(self) -> None:
                super().__init__()
                self.norm = ChannelLayerNorm()

            def forward(self, inputs: Tensor) -> Tensor:
                hidden = torch.tanh(self.first(inputs)).unflatten(1, (2, 3))
                hidden = torch.cat([hidden, hidden[:, :1]], dim=1)[:, :num_channels]
                return self.last(self.norm(hidden).flatten(1)[:, :6])

        _check(Net(), ("norm.weight",), caplog)

    def test_the_bias_of_a_layer_whose_weight_is_made_of_another_is_still_read(self, caplog) -> None:
        model = _Net()
        parametrizations.weight_norm(model.last)
        parts = tuple(f"last.parametrizations.weight.original{number}" for number in (0, 1))
        _check(model, parts, caplog)

    def test_shared_position_tables_of_t5(self, caplog) -> None:
        case = build("t5")
        probe = GradientProbe(case.model, 3)
        tables = [name for name, _ in case.model.named_parameters() if "relative_attention_bias" in name]
        assert len(tables) == 2
        assert all(name in caplog.text for name in tables)
        assert probe.coverage < 1.0

    def test_an_embedding_that_makes_its_own_ids(self, caplog) -> None:
        case = language_case(opt())
        positions = "model.decoder.embed_positions.weight"
        rest = parameters_of(case.model, lambda name: name != positions)
        assert_equal(case.probed(GradientProbe(case.model, 3)), expected_of(case, rest))
        assert positions in caplog.text

    def test_only_the_largest_are_named_and_the_rest_counted(self, caplog) -> None:
        model = nn.ModuleList([nn.Linear(3, 3), *[nn.Conv1d(n, 2, 1, bias=False) for n in range(1, 9)]])
        GradientProbe(model, 2)
        assert "apart in 8.weight, 7.weight, 6.weight, 5.weight, 4.weight and 3 more: 85.7 % of the" in caplog.text


class TestRead:
    def test_a_norm_of_its_own_kind_of_scale(self, caplog) -> None:
        class ShiftedRMSNorm(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.rand(6))

            def forward(self, inputs: Tensor) -> Tensor:
                return nn.functional.normalize(inputs, dim=-1) * (1.0 + self.weight)

        class Net(_Net):
            def __init__(self) -> None:
                super().__init__()
                self.norm = ShiftedRMSNorm()

            def forward(self, inputs: Tensor) -> Tensor:
                return self.last(self.norm(self.first(inputs)))

        _check(Net(), (), caplog)

    @pytest.mark.parametrize("frozen", ["weight", "bias"])
    def test_what_is_trained_of_a_layer_that_is_partly_frozen(self, frozen: str, caplog) -> None:
        class Net(_Net):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.LayerNorm(6)
                for layer in (self.norm, self.last):
                    getattr(layer, frozen).requires_grad_(False)

            def forward(self, inputs: Tensor) -> Tensor:
                return self.last(self.norm(self.first(inputs)))

        model = Net()
        case = vector_case(model, IDS, 5, 4)
        assert_equal(case.probed(GradientProbe(model, 3)), expected_of(case))
        assert not caplog.records

    def test_tokens_flattened_over_rows(self, caplog) -> None:
        class Net(_Net):
            def forward(self, inputs: Tensor) -> Tensor:
                hidden = self.first(torch.stack([inputs, inputs.flip(1), -inputs], dim=1))
                return self.last(torch.tanh(hidden).flatten(0, 1)).unflatten(0, (-1, 3)).sum(1)

        _check(Net(), (), caplog)

    def test_an_embedding_with_sparse_gradients(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table, self.last = nn.Embedding(20, 6, sparse=True), nn.Linear(6, 4)

            def forward(self, inputs: Tensor) -> Tensor:
                return self.last(self.table((inputs.abs() * 5).long().clamp(max=19)).mean(1))

        model = Net()
        case = vector_case(model, IDS, 5, 4)
        found = case.probed(GradientProbe(model, 3))
        assert model.table.weight.grad.is_sparse
        twin = Net()
        twin.table = nn.Embedding(20, 6)
        twin.load_state_dict(model.state_dict())
        case.model = twin
        assert_equal(found, expected_of(case))

    def test_streams_that_cancel_in_half_precision(self, caplog) -> None:
        table, weights = nn.Embedding(4, 8, dtype=torch.bfloat16), torch.randn(40, 8).bfloat16()
        ids, signs = torch.arange(4).expand(80, 4), torch.tensor([1.0] * 40 + [-1.005] * 40).bfloat16()
        probe = GradientProbe(table, 2)
        probe.start([0] * 40 + [1] * 40)
        (table(ids).sum(1) * (torch.cat([weights, weights]) * signs[:, None])).sum().backward()
        assert probe.finish().cosines[0, 1] < -0.99
        assert probe.coverage == 1.0
        assert not caplog.records

    def test_a_parameter_frozen_after_the_probe_was_made(self) -> None:
        model = _Net()
        case, probe = vector_case(model, IDS, 5, 4), GradientProbe(model, 3)
        model.first.requires_grad_(False)
        assert_equal(case.probed(probe), expected_of(case))


class _Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(5, 6), nn.LayerNorm(6)
        self.last = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(input=self.norm(input=torch.tanh(self.first(input=inputs))))


def test_inputs_by_keyword(caplog) -> None:
    _check(_Squares(), (), caplog)


class TestErrors:
    def test_a_model_that_another_probe_reads(self) -> None:
        model = _Net()
        other = GradientProbe(model, 2)
        other.start([0, 1])
        with pytest.raises(
            ValueError, match=r"another GradientProbe is reading this model: call its finish\(\) or cancel"
        ):
            GradientProbe(model, 2)
        other.cancel()
        GradientProbe(model, 2)

    def test_layers_in_whose_place_something_else_runs(self, caplog) -> None:
        model = _Net()
        model.first.forward = lambda inputs: nn.functional.linear(inputs, model.first.weight)
        GradientProbe(model, 2)
        reason = r"Something else (hooks of accelerate?) runs in place of the forward of some ['Linear']"
        assert reason in caplog.text
        model.last.forward = model.first.forward
        with pytest.raises(ValueError, match=re.escape(reason)):
            GradientProbe(model, 2)

    def test_what_is_no_model(self) -> None:
        with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got a int: 3"):
            GradientProbe(3, 2)

    @pytest.mark.parametrize("options", [{}, {"mode": "sketch"}, {"mode": "sketch", "homogeneous": True}])
    def test_no_backward(self, options) -> None:
        model = _Net()
        probe = GradientProbe(model, 2, **options)
        for runs_forward in (False, True):
            probe.start([0, 0])
            if runs_forward:
                model(torch.randn(2, 5))
            with pytest.raises(ValueError, match=r"or no backward came between start\(\) and finish\(\)"):
                probe.finish()

    def test_a_loss_that_differentiates_through_gradients(self) -> None:
        for options in ({}, {"homogeneous": True, "mode": "sketch"}):
            model, inputs = _Net(), torch.randn(2, 5, requires_grad=True)
            probe = GradientProbe(model, 2, **options)
            probe.start([0, 0])
            loss = model(inputs).square().sum()
            if options:
                (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
                (loss + slope.square().sum()).backward()
                assert probe.finish().gram[0, 0] > 0
                continue
            with pytest.raises(RuntimeError, match=r"create_graph=True\), .* Use homogeneous=True"):
                torch.autograd.grad(loss, inputs, create_graph=True)
            probe.cancel()

    def test_a_model_of_which_nothing_can_be_read(self) -> None:
        with pytest.raises(
            ValueError, match=r"None of the layers can be read: they are of kinds \['Conv1d'\].*homogen"
        ):
            GradientProbe(nn.Conv1d(2, 2, 1), 2)

    def test_patterns_that_match_nothing(self) -> None:
        with pytest.raises(ValueError, match=r"layers=\['\*.mlp'\] matches no .*; layers are named like \['0', '1'\]"):
            GradientProbe(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 2, layers=["*.mlp"])

    def test_a_model_without_trainable_parameters(self) -> None:
        with pytest.raises(ValueError, match=r"has no trainable parameters, so there is no gradient to measure"):
            GradientProbe(nn.Linear(2, 2).requires_grad_(False), 2)

    def test_ids_that_do_not_fit_the_batch(self) -> None:
        model = _Net()
        probe = GradientProbe(model, 2)
        probe.start([0, 1, 1])
        model(torch.randn(5, 5)).sum().backward()
        with pytest.raises(ValueError, match=r"could read no layer: .* one for each of the stream_ids .* Give one id"):
            probe.finish()
        assert np.isfinite(probe.coverage)
