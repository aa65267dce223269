"""The hooks of `docs/own_hooks.md` run as they stand there, and do what the page says."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mixer import MixingTrainer
from tests.helpers import GradientRecorder, arguments, weights_of
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.own_hooks_worker import DATA, resumed, run_page, whole
from tests.replay.methods.runs import Classifier

STRENGTH, LEARNING_RATE = 0.3, 0.1


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_page(tmp_path_factory.mktemp("page"), max_steps=2)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("one_rank")
    return {train.__name__: train(folder) for train in (whole, resumed)}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_ranks")
    launch_warm("own_hooks_worker.py", folder)
    return folder


def trained(folder: Path, hook: Any) -> tuple[MixingTrainer, list[torch.Tensor]]:
    """Trains three steps on all data with one hook; returns the gradients before each optimizer step."""
    recorder = GradientRecorder()
    args = arguments(folder, per_device_train_batch_size=5, learning_rate=LEARNING_RATE, lr_scheduler_type="constant")
    options: dict[str, Any] = {"batch_size": 32, "methods": [hook], "callbacks": [recorder]}
    trainer = MixingTrainer(Classifier(), args, train_dataset=DATA, **options)
    trainer.train()
    return trainer, recorder.gradients


@pytest.fixture(scope="module")
def anchored(page: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(tmp_path_factory.mktemp("anchored"), page["Anchored"](STRENGTH))


@pytest.fixture(scope="module")
def turning(page: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(tmp_path_factory.mktemp("turning"), page["Turning"]())


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    """The loss on all data at once."""
    x, labels = (torch.cat([getattr(data, name) for data in DATA.values()]) for name in ("x", "labels"))
    return model(x, labels)["loss"]


def gradients_of(loss: torch.Tensor, model: torch.nn.Module) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def step(model: torch.nn.Module, gradients: list[torch.Tensor]) -> None:
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        weight.data -= LEARNING_RATE * gradient


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


class TestPenalty:
    def test_its_gradient_is_that_of_the_formula(self, anchored: Any) -> None:
        model = Classifier()
        start = weights_of(model).clone()
        for found in anchored[1]:
            weights = torch.nn.utils.parameters_to_vector(model.parameters())
            gradients = gradients_of(loss_of(model) + STRENGTH * (weights - start).square().sum(), model)
            torch.testing.assert_close(found, flat(gradients), rtol=0, atol=1e-12)
            step(model, gradients)
        assert STRENGTH * (weights - start).abs().max() > 1e-3

    def test_the_log_has_it_once_a_step(self, anchored: Any) -> None:
        model = Classifier()
        start = weights_of(model).clone()
        logged = [entry["term/Anchored"] for entry in anchored[0].state.log_history if "loss" in entry]
        for gradient, entry in zip(anchored[1], logged, strict=True):
            expected = float(STRENGTH * (weights_of(model) - start).square().sum())
            assert entry == pytest.approx(expected, rel=1e-6)
            torch.nn.utils.vector_to_parameters(weights_of(model) - LEARNING_RATE * gradient, model.parameters())
        assert logged[2] > 0

    def test_each_run_of_a_trainer_has_its_own_anchor(self, page: dict[str, Any]) -> None:
        for _ in range(2):
            page["trainer"].train()
            terms = [entry["term/Anchored"] for entry in page["trainer"].state.log_history if "loss" in entry]
            assert terms[0] == 0 < terms[1]

    def test_skipped_samples_are_refused_when_the_trainer_is_made(self, page: dict[str, Any], tmp_path: Path) -> None:
        options: dict[str, Any] = {"methods": [page["Anchored"](1.0)], "on_sample_error": "skip"}
        with pytest.raises(ValueError, match="Anchored: the shares of skipped samples would be missing"):
            MixingTrainer(Classifier(), arguments(tmp_path), train_dataset=DATA, **options)

    def test_another_strength_is_refused_on_resume(self, one_rank: dict[str, Any]) -> None:
        folder = Path(one_rank["whole"].args.output_dir)
        names = run_page(folder)
        names["trainer"]._parts.methods.all[0].strength = 2.0
        with pytest.raises(ValueError, match=r"were Anchored\(0\.05\) and are Anchored\(2\.0\) now"):
            names["trainer"].train(resume_from_checkpoint=str(folder / "checkpoint-3"))


class TestRule:
    def test_its_gradient_is_what_is_left_beside_the_weights(self, turning: Any) -> None:
        model = Classifier()
        for found in turning[1]:
            gradients = gradients_of(loss_of(model), model)
            left = [
                gradient - (gradient * weight).sum() / weight.square().sum() * weight
                for gradient, weight in zip(gradients, model.parameters(), strict=True)
            ]
            torch.testing.assert_close(found, flat([one.detach() for one in left]), rtol=0, atol=1e-12)
            assert (found - flat(gradients)).abs().max() > 1e-3
            step(model, [one.detach() for one in left])

    def test_the_log_has_the_share_that_is_left(self, turning: Any) -> None:
        whole_gradient = flat(gradients_of(loss_of(model := Classifier()), model))
        first = turning[0].state.log_history[0]["turning"]
        assert first == pytest.approx(float(turning[1][0].square().sum() / whole_gradient.square().sum()))


class TestRuns:
    def test_a_resumed_run_ends_with_the_weights_of_the_whole_one(self, one_rank: dict[str, Any]) -> None:
        assert torch.equal(weights_of(one_rank["resumed"].model), weights_of(one_rank["whole"].model))

    def test_two_ranks_have_the_weights_of_one(self, two_ranks: Path, one_rank: dict[str, Any]) -> None:
        first, second = (torch.load(two_ranks / f"whole-{rank}.pt") for rank in range(2))
        assert torch.equal(first, second)
        torch.testing.assert_close(first, weights_of(one_rank["whole"].model), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("rank", [0, 1])
    def test_two_ranks_resume_to_the_bit(self, two_ranks: Path, rank: int) -> None:
        assert torch.equal(torch.load(two_ranks / f"resumed-{rank}.pt"), torch.load(two_ranks / f"whole-{rank}.pt"))

    def test_two_ranks_log_what_one_logs(self, two_ranks: Path, one_rank: dict[str, Any]) -> None:
        alone = one_rank["whole"].state.log_history[-2]
        for result in results_of(two_ranks, "own_hooks"):
            for entry in ("term/Anchored", "turning"):
                assert result["whole"][entry] == pytest.approx(alone[entry], rel=1e-5)
