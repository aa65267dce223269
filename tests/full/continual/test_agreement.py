"""Runs end as loops in plain PyTorch do, written from the papers' equations, that share no code with what they check.

A loop begins with the same weights and is told what the run drew: the rows of each step, RanPAC's projection and the
noise of SLCA. What it does with them is its own. EWC has such a loop in `tests/tasks/methods/test_weights.py`.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixer.utils.random_state import seeded
from replay import DERPlusPlus, ReplayBuffer
from tasks.continual import ContinualRun
from tasks.methods import SLCA, ICaRL, LwF, RanPAC, nearest_mean, slow_encoder
from tasks.score import Score
from tasks.sequences import by_class
from tasks.sources import digits
from tasks.sources.arrays import InMemory
from tests.helpers import On, arguments, weights_of

SEEDS, BATCH, CAPACITY, RATE, MOMENTUM, SLOW = range(3), 16, 60, 0.05, 0.9, 0.1
ALIGNED = 64, 4  # features of a class, and epochs
Log = list[list[list[Tensor]]]  # of each task, of each step: the rows of its micro-batches


class Net(nn.Module):
    """What is trained; the number of a row goes in so that it can be noted."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def features(self, pixels: Tensor) -> Tensor:
        return self.body(pixels).relu()

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, row: Tensor | None = None
    ) -> dict[str, Tensor]:
        logits = self.head(self.features(pixel_values))
        return {"logits": logits} | ({} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)})


TRAIN, HELD = (
    InMemory({"pixel_values": part.inputs, "labels": part.labels, "row": np.arange(len(part))}) for part in digits()
)
PIXELS, LABELS, ROWS = TRAIN.read_columns(np.arange(len(TRAIN))).values()
OWN = [(0, 1), (2, 3), (4, 5)]  # classes of each task


def logits_of(model: Net, pixels: Tensor) -> Tensor:
    logits: Tensor = model.head(model.features(pixels))
    return logits


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(dim=1)[torch.arange(len(labels)), labels].mean()


class Loop:
    """Replays rows as if they were new: ER."""

    def __init__(self, seed: int, run: ContinualRun) -> None:
        self.model, self.run, self.task = Net(seed), run, 0
        self.scores: list[list[float]] = []  # of all tasks, after each

    def groups(self) -> Any:
        return self.model.parameters()

    def loss(self, *parts: Tensor) -> Tensor:
        rows = torch.cat(parts)
        return mean_loss(self.logits(rows), LABELS[rows])

    def end(self) -> None:
        """What is done at a task's end."""

    def logits(self, rows: Tensor) -> Tensor:
        return logits_of(self.model, PIXELS[rows])

    def follow(self, log: Log) -> None:
        for self.task, steps in enumerate(log):
            optimizer = torch.optim.SGD(self.groups(), RATE, MOMENTUM)
            self.before = copy.deepcopy(self.model)
            for parts in steps:
                optimizer.zero_grad()
                self.loss(*parts).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                self.end()
                self.scores.append(self.accuracies())

    @property
    def earlier(self) -> list[int]:
        return [label for own in OWN[: self.task] for label in own]

    @property
    def num_seen(self) -> int:
        return len(self.earlier) + len(OWN[self.task])

    def predicted(self, pixels: Tensor) -> Tensor:
        return logits_of(self.model, pixels).argmax(dim=1)

    def accuracies(self) -> list[float]:
        pixels, labels, _ = HELD.read_columns(np.arange(len(HELD))).values()
        is_right = self.predicted(pixels) == labels
        return [float(is_right[torch.isin(labels, torch.tensor(own))].double().mean()) for own in OWN]


class Dark(Loop):
    """DER++, equation 7: logits as they were when a row was new, and labels in a second draw."""

    def __init__(self, seed: int, run: ContinualRun) -> None:
        super().__init__(seed, run)
        self.stored = torch.full((len(ROWS), 10), torch.nan)

    def loss(self, *parts: Tensor) -> Tensor:
        new, *drawn = parts
        logits = self.logits(new)
        loss = mean_loss(logits, LABELS[new])
        if drawn:
            first, second = drawn
            loss = loss + 0.4 * (self.logits(first) - self.stored[first]).square().mean()
            loss = loss + 0.7 * mean_loss(self.logits(second), LABELS[second])
        self.stored[new] = logits.detach()
        return loss


class Keeping(Loop):
    """LwF, equations 2 and 3."""

    def loss(self, *parts: Tensor) -> Tensor:
        loss = super().loss(*parts)
        if not self.task:
            return loss
        pixels = PIXELS[parts[0]]
        with torch.no_grad():
            target = (logits_of(self.before, pixels)[:, self.earlier] / 2).softmax(dim=1)
        own = (self.logits(parts[0])[:, self.earlier] / 2).softmax(dim=1)
        return loss - 1.5 * (target * own.log()).sum(dim=1).mean()


class Exemplars(Loop):
    """iCaRL: algorithm 3 in training, 4 and 5 for the memory, 1 for the classes of samples."""

    def __init__(self, seed: int, run: ContinualRun) -> None:
        super().__init__(seed, run)
        self.kept: dict[int, list[int]] = {}

    def loss(self, *parts: Tensor) -> Tensor:
        rows = torch.cat(parts)
        old = [row for row in rows.tolist() if int(LABELS[row]) in self.earlier]
        assert {*old} <= {row for kept in self.kept.values() for row in kept}
        targets = nn.functional.one_hot(LABELS[rows], 10).float()
        with torch.no_grad():
            before = logits_of(self.before, PIXELS[rows]).sigmoid()
        targets[:, self.earlier] = before[:, self.earlier]
        outputs = self.logits(rows).sigmoid()
        losses = -targets * outputs.log() - (1 - targets) * (1 - outputs).log()
        return losses[:, : self.num_seen].sum(dim=1).mean()

    def directions(self, pixels: Tensor) -> Any:
        features = self.model.features(pixels).double().numpy()
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    def end(self) -> None:
        count = CAPACITY // self.num_seen
        self.kept = {label: kept[:count] for label, kept in self.kept.items()}
        for label in OWN[self.task]:
            rows = ROWS[label == LABELS]
            directions, chosen = self.directions(PIXELS[rows]), list[int]()
            for _ in range(count):
                distances = {
                    place: np.linalg.norm(directions.mean(axis=0) - directions[[*chosen, place]].mean(axis=0))
                    for place in range(len(rows))
                    if place not in chosen
                }
                chosen.append(min(distances, key=distances.__getitem__))
            self.kept[label] = rows[chosen].tolist()

    def predicted(self, pixels: Tensor) -> Tensor:
        if self.num_seen == 6:  # what the run holds at its end
            memory: Any = self.run.memory
            held = sorted(int(memory[place]["row"]) for place in range(len(memory)))
            assert held == sorted(row for kept in self.kept.values() for row in kept)
        means = np.stack([self.directions(PIXELS[kept]).mean(axis=0) for kept in self.kept.values()])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        distances = np.linalg.norm(self.directions(pixels)[:, None] - means, axis=2)
        return torch.tensor([*self.kept])[distances.argmin(axis=1)]


class Projected(Loop):
    """RanPAC, algorithm 1, after a first session: ridge regression by one system of equations over all tasks."""

    def groups(self) -> Any:
        return (self.model.head if self.task else self.model).parameters()

    def hidden(self, pixels: Tensor) -> Any:
        (method,) = self.run.rehearsal.new_methods()
        projection = method._state["projection"].double().numpy()  # type: ignore[attr-defined]
        return np.maximum(self.model.features(pixels).double().numpy() @ projection, 0.0)

    def predicted(self, pixels: Tensor) -> Tensor:
        rows = self.num_seen > LABELS
        inputs, targets = self.hidden(PIXELS[rows]), np.eye(self.num_seen)[LABELS[rows]]
        weights = np.linalg.solve(inputs.T @ inputs + 10.0 * np.eye(inputs.shape[1]), inputs.T @ targets)
        return torch.from_numpy((self.hidden(pixels) @ weights).argmax(axis=1))


class Slow(Loop):
    """SLCA: a slow encoder, each task's classes among themselves, and an output layer aligned with all after it."""

    def __init__(self, seed: int, run: ContinualRun) -> None:
        super().__init__(seed, run)
        (method,) = run.rehearsal.new_methods()
        self.seed, self.gaussians = seed, method._gaussians  # type: ignore[attr-defined]

    def groups(self) -> Any:
        slow = {"params": self.model.body.parameters(), "lr": SLOW * RATE}
        return [{"params": self.model.head.parameters()}, slow]

    def loss(self, *parts: Tensor) -> Tensor:
        (rows,) = parts
        return mean_loss(self.logits(rows)[:, OWN[self.task]], LABELS[rows] - OWN[self.task][0])

    def end(self) -> None:
        for label in OWN[self.task]:
            features, (mean, factor) = self.model.features(PIXELS[label == LABELS]), self.gaussians[self.task, label]
            torch.testing.assert_close(mean, features.mean(dim=0), rtol=0, atol=1e-5)
            covariance = np.cov(features.double().numpy(), rowvar=False)
            torch.testing.assert_close((factor.T @ factor).double(), torch.from_numpy(covariance), rtol=0, atol=1e-5)
        with torch.enable_grad(), seeded(self.seed, self.task, 1):  # the run's draws
            self.align()

    def predicted(self, pixels: Tensor) -> Tensor:
        return logits_of(self.model, pixels)[:, : self.num_seen].argmax(dim=1)

    def align(self) -> None:
        head, known, (count, epochs) = self.model.head, self.num_seen, ALIGNED
        optimizer = torch.optim.SGD(head.parameters(), momentum=0.9)
        for epoch in range(epochs):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 + np.cos(np.pi * epoch / epochs))
            classes = [self.gaussians[label // 2, label] for label in range(known)]
            features = torch.cat([mean + torch.randn(count, len(factor)) @ factor for mean, factor in classes])
            labels = torch.arange(known).repeat_interleave(count)
            for rows in torch.randperm(len(labels)).split(count):
                logits = head(features[rows])[:, :known]
                optimizer.zero_grad()
                mean_loss(logits / (0.1 * logits.norm(dim=1, keepdim=True)), labels[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()


def _of_icarl() -> dict[str, Any]:
    memory = ReplayBuffer(CAPACITY, "Herding", is_online=False)
    return {"memory": memory, "methods": [ICaRL()], "score": nearest_mean(memory)}


def _of_ran_pac() -> dict[str, Any]:
    method = RanPAC(200, trains_first=True, strengths=[10.0])
    return {"methods": [method], "score": Score(method.score, metric="accuracy")}


def _of_slca() -> dict[str, Any]:
    method = SLCA(*ALIGNED, learning_rate=0.1)
    score = Score(method.score, metric="accuracy")
    return {"methods": [method], "score": score, "trainer_class": slow_encoder(SLOW)}


CASES: dict[str, tuple[type[Loop], Callable[[], dict[str, Any]]]] = {
    "ER": (Loop, lambda: {"memory": ReplayBuffer(CAPACITY)}),
    "DER++": (
        Dark,
        lambda: {
            "memory": ReplayBuffer(CAPACITY),
            "methods": lambda: [DERPlusPlus(alpha=0.4, beta=0.7, second="again")],
            "second_draw": "again",
        },
    ),
    "LwF": (Keeping, lambda: {"methods": [LwF(strength=1.5)]}),
    "iCaRL": (Exemplars, _of_icarl),
    "RanPAC": (Projected, _of_ran_pac),
    "SLCA": (Slow, _of_slca),
}


def build(folder: Path, model: Net, log: Log, seed: int, options: dict[str, Any]) -> ContinualRun:
    """A run that notes the rows of each step."""

    def note(module: nn.Module, args: Any, given: Any) -> None:
        if module is model and module.training:  # no copy, and not to evaluate
            log[-1][-1].append(given["row"])

    model.register_forward_pre_hook(note, with_kwargs=True)
    begins = On(train_begin=lambda *_, **__: log.append([]), step_begin=lambda *_, **__: log[-1].append([]))
    training = {"num_train_epochs": 1, "max_steps": -1, "per_device_train_batch_size": 64, "max_grad_norm": 0.0}
    return ContinualRun(
        model,
        by_class(TRAIN, HELD, 2)[: len(OWN)],
        arguments(folder, seed=seed, lr_scheduler_type="constant", logging_strategy="no", **training),
        batch_size=BATCH,
        scores_before=False,
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": RATE, "momentum": MOMENTUM}),
        callbacks=[begins],
        **options,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_a_run_ends_at_the_weights_of_a_loop_in_plain_pytorch(name: str, seed: int, tmp_path: Path) -> None:
    (kind, options), model, log = CASES[name], Net(seed), Log()
    run = build(tmp_path, model, log, seed, options())
    run.run()
    loop = kind(seed, run)
    loop.follow(log)
    torch.testing.assert_close(weights_of(model), weights_of(loop.model), rtol=0, atol=1e-5)
    assert run.scores.scores[1:].tolist() == loop.scores
