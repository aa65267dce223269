"""What holds for any model and any batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixer.gradients.probe import GradientProbe
from tests.mixer.gradients.probe.cases import Mlp, vector_case
from tests.mixer.gradients.probe.reference import Case, assert_equal, expected_of, parameters_of, splits

sizes = st.integers(1, 9)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_streams = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(0, num_streams - 1), min_size=1, max_size=12))
    widths = draw(st.lists(sizes, min_size=2, max_size=4))
    seed = draw(st.integers(0, 1000))
    torch.manual_seed(seed)
    return vector_case(Mlp(*widths, norm=torch.nn.RMSNorm), ids, widths[0], widths[-1], seed, num_streams)


@st.composite
def partitions(draw: st.DrawFn, num_rows: int) -> list[list[int]]:
    ends = sorted(draw(st.sets(st.integers(1, num_rows - 1), max_size=4))) if num_rows > 1 else []
    return list(splits(num_rows, *np.diff([0, *ends, num_rows]).tolist()))


@given(case=cases())
def test_it_equals_a_backward_for_each_stream_and_row(case: Case) -> None:
    assert_equal(case.probed(GradientProbe(case.model, case.num_streams)), expected_of(case), 1e-4)


@given(case=cases())
def test_rows_of_the_product_weighted_by_shares_add_up_to_the_product_with_the_whole(case: Case) -> None:
    found = case.probed(GradientProbe(case.model, case.num_streams))
    whole = torch.cat([one.grad.flatten() for one in parameters_of(case.model)]).double()
    there = found.shares > 0
    gram, shares = found.gram[np.ix_(there, there)], found.shares[there]
    norm = float(whole.norm())
    np.testing.assert_allclose(shares @ gram @ shares, norm**2, rtol=1e-4, atol=1e-8)
    assert np.isclose(found.shares.sum(), 1.0)
    for number, stream in enumerate(np.flatnonzero(there)):
        own = [row for row in range(case.num_rows) if case.stream_ids[row] == stream]
        mean = torch.autograd.grad(case.loss(own) / found.shares[stream], parameters_of(case.model), allow_unused=True)
        product = float(torch.cat([one.flatten() for one in mean]).double() @ whole)
        limit = 1e-4 * (norm * np.sqrt(gram[number, number]) + 1e-6)
        np.testing.assert_allclose(shares @ gram[:, number], product, rtol=1e-4, atol=limit)


@given(case=cases(), data=st.data())
def test_micro_batches_change_nothing(case: Case, data: st.DataObject) -> None:
    parts = data.draw(partitions(case.num_rows))
    exact = GradientProbe(case.model, case.num_streams, exact_accumulate=True)
    assert_equal(case.probed(exact, parts), expected_of(case), 1e-4)
    sketch = GradientProbe(case.model, case.num_streams, "sketch", sketch_size=3)
    expected, found = case.probed(sketch), case.probed(sketch, parts)
    limits = 1e-5 * np.nanmax(np.abs(expected.gram)) + 1e-7
    np.testing.assert_allclose(found.gram, expected.gram, rtol=1e-4, atol=limits)


@given(case=cases(), data=st.data())
def test_the_order_of_rows_changes_nothing(case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(case.num_rows)))
    other = Case(
        case.model,
        case.rows(order),
        case.losses,
        case.items[list(order)],
        case.ids(order),
        case.num_streams,
    )
    probe = GradientProbe(case.model, case.num_streams)
    expected, found = case.probed(probe), other.probed(probe)
    assert_equal(found, expected, 1e-4)


@pytest.mark.parametrize("num_rows", [2, 4])
@pytest.mark.parametrize("homogeneous", [False, True])
def test_rows_of_different_length_give_no_bias(num_rows: int, homogeneous: bool) -> None:
    """Lengths of 1 or 6, and items around a true gradient of norm 1: of the loss `Σ <w, items>` they are gradients."""
    generator, model, found = torch.Generator().manual_seed(num_rows), torch.nn.Linear(3, 1, bias=False), []
    true, distances = torch.tensor([0.6, 0.8, 0.0]), []
    probe = GradientProbe(model, 1, homogeneous=homogeneous, exact_accumulate=True)
    for _ in range(1500):
        lengths = torch.tensor([1, 6])[torch.randint(2, (num_rows,), generator=generator)]
        items = torch.randn(num_rows, 6, 3, generator=generator) + true
        items = items * (torch.arange(6) < lengths[:, None])[:, :, None]
        for rows in torch.arange(num_rows).split(1 if homogeneous else num_rows):
            probe.start([0] * len(rows), lengths[rows])
            (model(items[rows]).sum() / lengths.sum()).backward()
        measured = probe.finish()
        mean = items.sum((0, 1)) / lengths.sum()
        distances.append(float((mean - true).square().sum()))
        found.append([measured.squared_norm[0], measured.variance[0] / num_rows])
    found = np.array(found)
    error = found.std(0) / np.sqrt(len(found))
    assert abs(found[:, 0].mean() - 1.0) < 4 * error[0]
    assert abs(found[:, 1].mean() - np.mean(distances)) < 4 * error[1]
