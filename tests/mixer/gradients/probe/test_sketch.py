"""A sketch is right in the mean, and off by no more than it says."""

import numpy as np
import pytest
import torch

from mixer.gradients.probe import GradientProbe, sketch
from tests.mixer.gradients.probe.cases import build
from tests.mixer.gradients.probe.reference import Case
from tests.ranks.warm import some

NUM_SEEDS = 80


def _trained(name: str) -> Case:
    """A model whose streams ask for different answers to the same questions, trained until they pull apart."""
    case = build(name)
    case.stream_ids = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    case.batch = {key: value[:3].repeat(3, *[1] * (value.dim() - 1)) for key, value in case.batch.items()}
    case.items = case.items[:3].repeat(3)
    streams = torch.tensor(case.stream_ids)[:, None]
    if "labels" in case.batch:
        case.batch["labels"] = torch.where(case.batch["labels"] == -100, -100, 2 + streams)
    else:
        case.batch["targets"] = case.batch["targets"] + torch.randn(3, 4)[streams[:, 0]]
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        case.loss().backward()
        optimizer.step()
    return case


@pytest.mark.parametrize("name", some(["mlp", "llama-tied", "gpt2"], ["mlp"]))
def test_it_is_unbiased_and_as_near_as_it_says(name: str) -> None:
    case = _trained(name)
    exact = case.probed(GradientProbe(case.model, 3))
    assert np.median(np.abs(exact.cosines[np.triu_indices(3, 1)])) > 0.3
    options = {"variance": False, "sketch_size": 4}
    found = [case.probed(GradientProbe(case.model, 3, "sketch", seed=s, **options)) for s in range(NUM_SEEDS)]
    grams, errors = np.stack([one.gram for one in found]), np.stack([one.gram_error for one in found])
    spread, limits = grams.std(0, ddof=1), np.sqrt((errors**2).mean(0))
    assert (spread > 0).all()
    assert (np.abs(grams.mean(0) - exact.gram) < 4 * spread / np.sqrt(NUM_SEEDS)).all()
    assert (spread < 1.25 * limits).all()  # the spread itself is only known to some percent
    assert (spread > 0.1 * limits).all()  # a bound that says something


def test_the_variance_is_exact_even_in_a_sketch_but_for_the_product_of_the_whole() -> None:
    case = _trained("mlp")
    exact = case.probed(GradientProbe(case.model, 3))
    found = case.probed(GradientProbe(case.model, 3, "sketch", sketch_size=3))
    # By both equations of `signal_and_noise`, the samples' squared norms are signal and noise together.
    ids, items = np.array(case.stream_ids), case.items.numpy()
    total, squared = np.bincount(ids, items, 3), np.bincount(ids, items**2, 3)
    sums = [squared * one.squared_norm + total**2 * one.variance / one.counts for one in (found, exact)]
    np.testing.assert_allclose(*sums, rtol=1e-5)


@pytest.mark.parametrize("name", some(["mlp", "llama-tied", "gpt2"], ["mlp"]))
def test_dense_matrices_give_what_sparse_ones_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, found = build(name), []
    monkeypatch.setattr(sketch, "_MOST_BUCKETS_OF_DENSE", 4)  # vectors have 16
    for is_sparse in (True, False):
        monkeypatch.setattr(sketch, "is_sparse", lambda _, own=is_sparse: own)
        probe = GradientProbe(case.model, 3, "sketch", sketch_size=4)
        found.append(np.stack([_drawn(case, probe, number) for number in range(2)]))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6 * np.nanmax(np.abs(found[0])))
    assert (found[0][0] != found[0][1])[np.isfinite(found[0][0])].any()


def _drawn(case: Case, probe: GradientProbe, number: int) -> np.ndarray:
    case.model.zero_grad()
    probe.start(case.stream_ids, case.items, draw=number)
    case.loss().backward()
    return probe.finish().gram


def test_over_draws_of_its_signs_it_is_unbiased_too_and_a_draw_is_the_same_whenever_it_is_drawn() -> None:
    case = _trained("mlp")
    exact = case.probed(GradientProbe(case.model, 3)).gram
    probe, other = (GradientProbe(case.model, 3, "sketch", sketch_size=4, variance=False) for _ in range(2))
    grams = np.stack([_drawn(case, probe, number) for number in range(NUM_SEEDS)])
    assert (np.abs(grams.mean(0) - exact) < 4 * grams.std(0, ddof=1) / np.sqrt(NUM_SEEDS)).all()
    assert (_drawn(case, probe, 7) == grams[7]).all()
    assert (_drawn(case, other, 8) == grams[8]).all()
    assert (grams[7] != grams[8]).any()
