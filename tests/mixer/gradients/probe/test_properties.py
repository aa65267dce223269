"""What holds for any model and any batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import Mlp, vector_case
from tests.mixer.gradients.probe.reference import Case, assert_equal, expected_of, splits


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_streams = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(0, num_streams - 1), min_size=1, max_size=12))
    widths = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
    torch.manual_seed(seed := draw(st.integers(0, 1000)))
    return vector_case(Mlp(*widths, norm=torch.nn.RMSNorm), ids, widths[0], widths[-1], seed, num_streams)


@settings(max_examples=10)
@given(case=cases(), data=st.data())
def test_micro_batches_and_the_order_of_rows_change_nothing(case: Case, data: st.DataObject) -> None:
    num_rows, expected = case.num_rows, expected_of(case)
    ends = sorted(data.draw(st.sets(st.integers(1, num_rows - 1), max_size=4))) if num_rows > 1 else []
    parts = list(splits(num_rows, *np.diff([0, *ends, num_rows]).tolist()))
    exact = GradientProbe(case.model, case.num_streams, exact_accumulate=True)
    assert_equal(case.probed(exact, parts), expected, 1e-4)
    sketch = GradientProbe(case.model, case.num_streams, "sketch", sketch_size=3)
    one, found = case.probed(sketch), case.probed(sketch, parts)
    np.testing.assert_allclose(found.gram, one.gram, rtol=1e-4, atol=1e-5 * np.nanmax(np.abs(one.gram)) + 1e-7)
    order = data.draw(st.permutations(range(num_rows)))
    other = Case(case.model, case.rows(order), case.losses, case.items[order], case.ids(order), case.num_streams)
    assert_equal(other.probed(GradientProbe(case.model, case.num_streams)), expected, 1e-4)


@pytest.mark.parametrize("homogeneous", [False, True])
def test_rows_of_different_length_give_no_bias(homogeneous: bool) -> None:
    """Lengths of 1 or 6, and items around a true gradient of norm 1: of the loss `Σ <w, items>` they are gradients."""
    generator, model, num_rows = torch.Generator().manual_seed(2), torch.nn.Linear(3, 1, bias=False), 2
    true, found, distances = torch.tensor([0.6, 0.8, 0.0]), [], []
    probe = GradientProbe(model, 1, homogeneous=homogeneous, exact_accumulate=True)
    for _ in range(300):
        lengths = torch.tensor([1, 6])[torch.randint(2, (num_rows,), generator=generator)]
        items = torch.randn(num_rows, 6, 3, generator=generator) + true
        items = items * (torch.arange(6) < lengths[:, None])[:, :, None]
        for rows in torch.arange(num_rows).split(1 if homogeneous else num_rows):
            probe.start([0] * len(rows), lengths[rows])
            (model(items[rows]).sum() / lengths.sum()).backward()
        measured = probe.finish()
        distances.append(float((items.sum((0, 1)) / lengths.sum() - true).square().sum()))
        found.append([measured.squared_norm[0], measured.variance[0] / num_rows])
    error = np.std(found, 0) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, 0) - [1.0, np.mean(distances)]) < 4 * error).all()
