"""One backward shows what one for each stream and each row shows, in one micro-batch or in several."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixer.gradients.probe import GradientProbe, reading as reading_module
from tests.mixer.gradients.probe.cases import CASES, IDS, build
from tests.mixer.gradients.probe.reference import (
    Batch,
    assert_equal,
    assert_near,
    assert_same_gradients,
    expected_of,
    gradients_of,
    parameters_of,
    splits,
)
from tests.refusals import refused

PARTS = list(splits(len(IDS), 1, 3, 2, 1, 2))


@pytest.mark.parametrize("is_short", [True, False])  # both ways to norms of samples, whatever the shapes
@pytest.mark.parametrize("name", CASES)
def test_it_equals_a_backward_by_stream_and_row(name: str, is_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "is_short", lambda inputs, gradients: is_short)
    case = build(name)
    case.loss().backward()
    plain = gradients_of(case.model)
    found = case.probed(probe := GradientProbe(case.model, 3))
    assert_same_gradients(gradients_of(case.model), plain)
    assert_equal(found, expected_of(case, parameters_of(case.model, lambda one: "attention_bias" not in one)))
    assert (found.gram_error[[0, 2]][:, [0, 2]] == 0.0).all()
    assert (probe.coverage == 1.0) == (name != "t5")


def test_each_step_is_read_anew_whatever_runs_without_gradients_in_between() -> None:
    case = build("lora-llama")
    probe, optimizer = GradientProbe(case.model, 3), torch.optim.SGD(parameters_of(case.model), lr=0.5)
    for _ in range(2):
        expected = expected_of(case)
        case.model.zero_grad()
        probe.start(case.stream_ids, case.items)
        taken = {name for name, module in case.model.named_modules() if "forward" in module.__dict__}
        with torch.no_grad():
            case.loss()
        case.loss().backward()
        assert_equal(probe.finish(), expected)
        assert taken
        assert all(".lora_" in name for name in taken)  # frozen parameters cost nothing
        optimizer.step()


def test_only_the_layers_that_patterns_name_are_read() -> None:
    case = build("llama-tied")
    chosen = parameters_of(case.model, lambda name: ".mlp." in name or "embed_tokens" in name)
    found = case.probed(GradientProbe(case.model, 3, layers=["*.mlp.*", "lm_head"]))
    assert_equal(found, expected_of(case, chosen))
    without = case.probed(GradientProbe(case.model, 3, layers=["*.mlp.*", "lm_head"], variance=False))
    np.testing.assert_allclose(without.gram, found.gram, rtol=1e-4, atol=1e-6)
    assert np.isnan([without.variance, without.squared_norm]).all()


def test_factors_on_losses_are_taken_out_again() -> None:
    case = build("gpt2")
    expected, losses, weights = expected_of(case), case.losses, torch.tensor([2.0, 1.0, 0.5])
    case.losses = lambda model, batch: losses(model, batch) * weights[torch.tensor(case.stream_ids)]
    found = case.probed(GradientProbe(case.model, 3), loss_scale=1024.0, loss_weights=weights)
    weighed = expected.shares * weights.numpy()
    assert_equal(found, replace(expected, shares=weighed / weighed.sum()))


def test_a_model_called_twice_is_read_in_both_calls_and_padding_has_no_gradient() -> None:
    case = build("llama-tied")
    assert case.model.get_input_embeddings().padding_idx == 0
    assert (case.batch["input_ids"] == 0).any()
    case.batch["attention_mask"] = torch.ones_like(case.batch["attention_mask"])
    losses = case.losses

    def twice(model: nn.Module, batch: Batch) -> Tensor:
        return losses(model, batch) + 0.5 * losses(model, {**batch, "input_ids": batch["input_ids"].flip(1)})

    case.losses = twice
    assert_equal(case.probed(GradientProbe(case.model, 3)), expected_of(case))


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "albert", "t5", "mlp"])
def test_split_anyhow_a_sketch_is_the_same_and_a_probe_that_may_accumulate_exact(name: str) -> None:
    case = build(name)
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=6)
    expected, found = case.probed(probe), case.probed(probe, PARTS)
    assert_equal(found, expected)
    assert_near(found.gram_error, expected.gram_error, 1e-5 * expected.gram_error)
    assert (found.gram_error[0] > 0)[[0, 2]].all()
    if name != "t5":
        assert_equal(case.probed(GradientProbe(case.model, 3, exact_accumulate=True), PARTS), expected_of(case))


def test_exact_without_accumulation_refuses_a_second_micro_batch_and_several_ranks_with_the_reason() -> None:
    case = build("mlp")
    probe = GradientProbe(case.model, 3)
    probe.start([0], [1])
    case.loss([0]).backward()
    with refused("mode"):
        probe.start([2], [1])
    assert not any("forward" in module.__dict__ for module in case.model.modules())
    assert_equal(case.probed(probe), expected_of(case))
    with refused("mode"):
        GradientProbe(torch.nn.Linear(2, 2), 2, world_size=2)


def test_rows_without_items_change_nothing_and_of_no_item_there_are_no_statistics() -> None:
    case = build("mlp")
    case.items[[1, 2]] = 0
    case.batch["items"][[1, 2]] = 0.0
    probe = GradientProbe(case.model, 3, exact_accumulate=True)
    assert_equal(case.probed(probe, [[1, 2], [0, 3, 4], [5, 6, 7, 8]]), expected_of(case))
    case.items[:] = 0
    case.batch["items"][:] = 0.0
    found = case.probed(GradientProbe(case.model, 3))
    assert np.isnan([found.gram, found.cosines]).all()
    assert found.counts.tolist() == [0, 0, 0]
