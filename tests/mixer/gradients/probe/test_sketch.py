"""A sketch is right in the mean, and off by no more than it says."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mixer.gradients.probe import GradientProbe
from mixer.gradients.probe.sketch import Fold, Projection
from tests.mixer.gradients.probe.cases import build
from tests.mixer.gradients.probe.reference import Case

NUM_SEEDS = 150


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


def _grams(case: Case, size: int) -> tuple[np.ndarray, np.ndarray]:
    probes = [
        GradientProbe(case.model, 3, "sketch", variance=False, sketch_size=size, seed=s) for s in range(NUM_SEEDS)
    ]
    found = [case.probed(probe) for probe in probes]
    return np.stack([one.gram for one in found]), np.stack([one.gram_error for one in found])


@pytest.mark.parametrize(("name", "is_trained"), [("mlp", False), ("mlp", True), ("llama-tied", True), ("gpt2", True)])
def test_it_is_unbiased_and_as_near_as_it_says(name: str, is_trained: bool) -> None:
    case = _trained(name) if is_trained else build(name)
    case.stream_ids = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    exact = case.probed(GradientProbe(case.model, 3))
    if is_trained:
        assert np.median(np.abs(exact.cosines[np.triu_indices(3, 1)])) > 0.3
    grams, errors = _grams(case, 4)
    spread = grams.std(0, ddof=1)
    assert (spread > 0).all()
    assert (np.abs(grams.mean(0) - exact.gram) < 4 * spread / np.sqrt(NUM_SEEDS)).all()
    limits = np.sqrt((errors**2).mean(0))
    assert (spread < 1.2 * limits).all()  # the spread itself is only known to some percent
    assert (spread > 0.1 * limits).all()  # a bound that says something


def test_more_rows_and_columns_are_nearer() -> None:
    case = _trained("gpt2")
    probes = [[GradientProbe(case.model, 3, "sketch", sketch_size=n, seed=s) for s in range(20)] for n in (2, 4, 8)]
    errors = [np.mean([np.trace(case.probed(probe).gram_error) for probe in own]) for own in probes]
    assert errors[0] > errors[1] > errors[2]


def test_what_is_not_larger_than_the_sketch_is_exact() -> None:
    case = build("mlp")
    exact = case.probed(GradientProbe(case.model, 3))
    found = case.probed(GradientProbe(case.model, 3, "sketch", sketch_size=16))
    np.testing.assert_allclose(found.gram, exact.gram, rtol=1e-5)
    assert (found.gram_error[[0, 2]][:, [0, 2]] == 0.0).all()


def test_the_variance_is_exact_even_in_a_sketch_but_for_the_product_of_the_whole() -> None:
    case = _trained("mlp")
    exact = case.probed(GradientProbe(case.model, 3))
    found = case.probed(GradientProbe(case.model, 3, "sketch", sketch_size=3))
    # By both equations of `signal_and_noise`, the samples' squared norms are signal and noise together.
    ids, items = np.array(case.stream_ids), case.items.numpy()
    total, squared = np.bincount(ids, items, 3), np.bincount(ids, items**2, 3)
    sums = [squared * one.squared_norm + total**2 * one.variance / one.counts for one in (found, exact)]
    np.testing.assert_allclose(*sums, rtol=1e-5)


def _drawn(case: Case, probe: GradientProbe, number: int) -> np.ndarray:
    case.model.zero_grad()
    probe.start(case.stream_ids, case.items, draw=number)
    case.loss().backward()
    return probe.finish().gram


def test_over_draws_of_its_signs_it_is_unbiased_too() -> None:
    case = _trained("mlp")
    exact = case.probed(GradientProbe(case.model, 3)).gram
    probe = GradientProbe(case.model, 3, "sketch", sketch_size=4, variance=False)
    grams = np.stack([_drawn(case, probe, number) for number in range(NUM_SEEDS)])
    assert (np.abs(grams.mean(0) - exact) < 4 * grams.std(0, ddof=1) / np.sqrt(NUM_SEEDS)).all()


def test_a_draw_is_the_same_whenever_it_is_drawn() -> None:
    case = _trained("mlp")
    probe, other = (GradientProbe(case.model, 3, "sketch", sketch_size=4) for _ in range(2))
    first, second, again = (_drawn(case, probe, number) for number in (7, 8, 7))
    assert (first == again).all()
    assert (first != second).any()
    assert (second == _drawn(case, other, 8)).all()


class TestFold:
    @pytest.mark.parametrize(("size", "num_buckets"), [(5, 2), (16, 4), (33, 32), (100, 7)])
    def test_rows_columns_and_some_rows_are_folded_alike(self, size: int, num_buckets: int) -> None:
        fold = Fold(size, num_buckets, 3, torch.device("cpu"), torch.float64)
        matrices = torch.randn(2, size, 3, dtype=torch.float64)
        rows = fold.rows(matrices)
        assert torch.allclose(rows, fold.columns(matrices.mT).mT)
        indices = torch.randperm(size)
        assert torch.allclose(rows, fold.some_rows(indices, matrices[:, indices]))
        assert rows.shape == (2, num_buckets, 3)

    def test_buckets_are_of_equal_size(self) -> None:
        fold = Fold(100, 7, 0, torch.device("cpu"), torch.float32)
        sizes = torch.bincount(fold.bucket)
        assert sizes.max() - sizes.min() <= 1


class TestProjection:
    @staticmethod
    def _projection(name: str, seed: int = 0) -> Tensor:
        whole = torch.eye(30)[None]
        return Projection(name, (30, 30), 4, seed, torch.device("cpu"), torch.float32).fold(whole)

    def test_it_follows_from_seed_and_name(self) -> None:
        assert torch.equal(self._projection("a"), self._projection("a"))
        assert not torch.equal(self._projection("a"), self._projection("b"))
        assert not torch.equal(self._projection("a"), self._projection("a", seed=1))

    @pytest.mark.parametrize("shape", [(), (1,), (7,), (300,), (3, 50), (50, 3), (4, 3, 5, 5)])
    def test_parameters_of_any_shape_fit(self, shape: tuple[int, ...]) -> None:
        projection = Projection("a", shape, 4, 0, torch.device("cpu"), torch.float32)
        height, width = (shape[0] if shape else 1), int(torch.Size(shape[1:]).numel())
        assert projection.fold(torch.randn(2, height, width)).shape == (2, *projection.shape)
        assert projection.shape[0] <= (4 if len(shape) > 1 else 16)
        assert projection.shape[1] <= 4
