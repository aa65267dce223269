from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.quality.cache import Run
from benchmarks.quality.mixtures import Mixture
from benchmarks.quality.optimum import best_changing, best_fixed, lattice
from benchmarks.quality.runs import run_once
from benchmarks.quality.synthetic import STREAMS, Problem, draw, new_problem


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_expected_losses_are_those_of_many_runs() -> None:
    generator = np.random.default_rng(1)
    inputs = np.array([[1.0, 0.2, 0.0], [0.5, 0.0, 1.0]])
    targets, noise = np.array([[1.0, -1.0, 0.0], [-0.5, 0.0, 2.0]]), np.array([0.1, 1.0])
    problem = Problem(tensor(inputs), tensor(targets), tensor(noise))
    counts, rate, num_runs = np.array([[3, 1], [1, 3], [2, 2], [3, 1], [0, 4]]), 0.08, 20_000
    theta = np.zeros((num_runs, 3))
    for row in counts:
        gradient = np.zeros_like(theta)
        for k, count in enumerate(row):
            x = generator.standard_normal((num_runs, count, 3)) * inputs[k] ** 0.5
            y = x @ targets[k] + generator.standard_normal((num_runs, count)) * noise[k] ** 0.5
            gradient += 2 * np.einsum("rc,rcf->rf", np.einsum("rcf,rf->rc", x, theta) - y, x) / 4
        theta -= rate * gradient
    losses = np.stack([((theta - targets[k]) ** 2 * inputs[k]).sum(axis=1) + noise[k] for k in range(2)], axis=1)
    found = problem.expected_losses(tensor(counts / 4), len(counts), 4, rate).numpy()
    error = losses.std(axis=0) / num_runs**0.5
    assert (np.abs(losses.mean(axis=0) - found) < 4 * error).all()


def test_the_best_fixed_weights_are_those_of_brute_force() -> None:
    problem, num_steps, batch, rate = new_problem(), 40, 16, 0.05
    found = best_fixed(problem, num_steps, batch, rate)
    mixtures = lattice(4, 24)
    averages = problem.expected_losses(mixtures.unsqueeze(1), num_steps, batch, rate).mean(dim=1)
    assert found.average <= averages.min().item()
    nearest = mixtures[averages.argmin()].numpy()
    assert np.abs(np.array(found.weights[0]) - nearest).max() < 1 / 24
    assert sum(found.weights[0]) == pytest.approx(1.0)


def test_weights_that_change_are_no_worse() -> None:
    problem = new_problem()
    fixed = best_fixed(problem, 12, 16, 0.05)
    changing = best_changing(problem, 12, 16, 0.05, fixed)
    assert changing.average < fixed.average
    assert len(changing.weights) == 12


def test_a_test_part_has_the_moments_of_its_distribution() -> None:
    problem = new_problem()
    theta = torch.from_numpy(np.random.default_rng(2).standard_normal(problem.inputs.shape[1]))
    for k, name in enumerate(STREAMS):
        test: Any = draw(name, 10, 10, 128)["test"]
        loss = ((test.features.double() @ theta - test.labels.double()) ** 2).mean().item()
        expected = (problem.inputs[k] * (theta - problem.targets[k]) ** 2).sum() + problem.noise[k]
        assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_runs_of_the_trainer_come_to_the_expected_losses(tmp_path: Path) -> None:
    mixture = Mixture("synthetic", is_quick=True)
    weights = [0.5, 0.25, 0.125, 0.125]  # whole samples of a batch of 24
    losses = []
    for seed in range(1, 4):
        run = Run(mixture, "fixed", "Fixed", {"weights": weights}, seed)
        run_once(run, tmp_path, None)
        losses.append(list((run.result(tmp_path) or {})["test_losses"].values()))
    expected = new_problem().expected_losses(tensor([weights]), mixture.num_steps, mixture.batch, 0.05)
    error = np.std(losses, axis=0, ddof=1) / len(losses) ** 0.5
    assert (np.abs(np.mean(losses, axis=0) - expected.numpy()) < 4 * error + 0.05).all()
