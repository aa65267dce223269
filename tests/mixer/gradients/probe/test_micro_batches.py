"""One step in several micro-batches."""

import numpy as np
import pytest
import torch

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import IDS, build
from tests.mixer.gradients.probe.reference import assert_equal, assert_near, expected_of, splits

PARTS = list(splits(len(IDS), 1, 3, 2, 1, 2))


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "albert", "mlp"])
def test_an_exact_probe_that_may_accumulate_is_exact_for_any_split(name: str) -> None:
    case = build(name)
    assert_equal(case.probed(GradientProbe(case.model, 3, exact_accumulate=True), PARTS), expected_of(case))


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "albert", "t5", "mlp"])
def test_a_sketch_is_the_same_for_any_split(name: str) -> None:
    case = build(name)
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=6)
    expected, found = case.probed(probe), case.probed(probe, PARTS)
    assert_equal(found, expected)
    assert_near(found.gram_error, expected.gram_error, 1e-5 * expected.gram_error)
    assert (found.gram_error[0] > 0)[[0, 2]].all()


def test_exact_without_accumulation_refuses_a_second_micro_batch_and_several_ranks_with_the_reason() -> None:
    case = build("mlp")
    probe = GradientProbe(case.model, 3)
    probe.start([0], [1])
    case.loss([0]).backward()
    with pytest.raises(ValueError, match=r"a second micro-batch: products of parts lack the cross terms. Use mode='sk"):
        probe.start([2], [1])
    assert not any("forward" in module.__dict__ for module in case.model.modules())
    assert_equal(case.probed(probe), expected_of(case))
    with pytest.raises(ValueError, match=r"a world_size of 2: products of parts lack .* exact_accumulate=True, which"):
        GradientProbe(torch.nn.Linear(2, 2), 2, world_size=2)


def test_rows_that_do_not_fit_leave_the_model_clean() -> None:
    case = build("mlp")
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=10**3)
    probe.start([0], [1])
    with pytest.raises(ValueError, match="stream_ids must be"):
        probe.start([3], [1])
    assert not any("forward" in module.__dict__ for module in case.model.modules())
    assert_equal(case.probed(probe), expected_of(case))


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
