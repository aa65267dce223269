"""What each rank does in the tests of memories on several ranks: `torchrun ... replay_worker.py FOLDER SCENARIO...`."""

import gc
import sys
from pathlib import Path
from typing import Any

import datasets
import torch

from mixer import LossChange, MixingTrainer, Stream
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, build_model
from tests.ranks.launch import end_with, message_of
from tests.replay.buffers import STORAGES, Classes, Masked, Watch, arrow, hexadecimal, make, memory_of, snapshot
from tests.replay.test_feeding import _rows

RUNS: dict[str, dict[str, Any]] = {
    "references": {},
    "on top": {"mixing": lambda: ReplayRatio(0.3, "Uniform", additional=True)},
    "adaptive": {"mixing": lambda: ReplayRatio(0.3, LossChange(num_warmup_observations=1))},
    "memory": {"storage": "memory", "streams": lambda: {"a": Masked(37, 1, length=8), "b": Tokens(23, 2, length=8)}},
    "disk": {"storage": "disk", "retrieval": "LeastRecent"},
    "column": {"selection": "ClassBalanced", "streams": lambda: {"a": labelled(1), "b": labelled(2)}},
    "batches": {"selection": "ClassBalanced", "is_classifier": True},
    "losses": {"selection": "Surprise", "is_classifier": True},
    "small": {"options": {"batch_size": 3}, "mixing": lambda: ReplayRatio(0.34, "Uniform")},
}


def labelled(seed: int) -> datasets.Dataset:
    """Tokens to predict, with a class beside them that the model does not take."""
    data = arrow(40, seed)
    return data.add_column("domain", [number % (3 + seed) // 2 for number in range(40)])


def rank_and_size() -> tuple[int, int]:
    is_ready = torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if is_ready else (0, 1)


def build(folder: Path, name: str, watch: Watch | None = None, **changes: Any) -> MixingTrainer:
    run = {**RUNS[name], **changes}
    buffer = ReplayBuffer(
        14,
        run.get("selection", "Reservoir"),
        STORAGES[run.get("storage", "references")](folder / "rows"),
        run.get("retrieval", "Uniform"),
        label_column="domain" if name == "column" else None,
    )
    streams = {name: Tokens(37 - 7 * k, k, length=8) for k, name in enumerate("ab")}
    if run.get("is_classifier"):
        streams = {"a": Classes(37, 1), "b": Classes(23, 2)}
    elif "streams" in run:
        streams = run["streams"]()
    args = {"save_strategy": "steps", "save_steps": 4, "per_device_train_batch_size": 3, "max_steps": 9}
    return make(
        folder,
        {**streams, "memory": buffer},
        watch,
        model=build_model("llama-classifier" if run.get("is_classifier") else "llama"),
        mixing=run["mixing"]() if "mixing" in run else ReplayRatio(0.3, "Uniform"),
        args=args,
        epoch_size=400,
        **run.get("options", {}),
    )


def rows_of(watch: Watch) -> list[list[tuple[int, list[int]]]]:
    """This rank's rows of each step: their streams and tokens."""
    return [
        [
            (int(stream_id), row.tolist())
            for micro in micros
            for stream_id, row in zip(micro["stream_ids"], micro["input_ids"], strict=True)
        ]
        for micros in watch.inputs
    ]


def results_of(trainer: MixingTrainer, watch: Watch) -> dict[str, Any]:
    buffer = memory_of(trainer)
    held = [torch.as_tensor(buffer[slot]["input_ids"]).tolist() for slot in range(len(buffer))]
    return {
        "buffer": snapshot(buffer),
        "held": held,
        "rows": rows_of(watch),
        "counts": [plan.counts.tolist() for plan in watch.plans],
        "weights": hexadecimal(trainer),
        "bytes": buffer.num_gathered_bytes,
    }


def runs(folder: Path) -> dict[str, Any]:
    """Every kind of run from its beginning to its end."""
    results = {}
    for name in RUNS:
        watch = Watch()
        trainer = build(folder / name, name, watch)
        trainer.train()
        results[name] = results_of(trainer, watch)
    return results


def go_on(folder: Path) -> dict[str, Any]:
    """Runs that another number of ranks began go on from their fourth step."""
    results = {}
    for name in ("references", "memory", "disk", "on top"):
        watch = Watch()
        trainer = build(folder / name, name, watch)
        trainer.train(resume_from_checkpoint=str(folder / name / "checkpoint-4"))
        results[name] = results_of(trainer, watch)
    return results


def iterables(folder: Path) -> dict[str, Any]:
    """Rows of iterable streams, each rank with rows of its own; the whole run, and one that goes on."""
    results: dict[str, Any] = {}
    for storage in ("disk",):
        ends = []
        for part, checkpoint in (("whole", None), ("whole", "checkpoint-4")):
            place, watch = folder / f"rows-{storage}", Watch()
            buffer = ReplayBuffer(14, storage=STORAGES[storage](place / part))
            rows = datasets.IterableDataset.from_generator(_shards, gen_kwargs={"firsts": [1, 2, 3, 4]})
            streams = [
                Stream("rows", rows.with_format("torch")),
                Stream("map", Tokens(30, 1, length=5)),
                Stream("memory", buffer),
            ]
            args = {"per_device_train_batch_size": 3, "save_strategy": "steps", "save_steps": 4, "max_steps": 10}
            trainer = make(place, streams, watch, args=args, mixing=ReplayRatio(0.3, "Uniform"))
            trainer.train(resume_from_checkpoint=checkpoint and str(place / checkpoint))
            ends.append(results_of(trainer, watch))
        results[storage] = ends
    return results


def _shards(firsts: list[int]) -> Any:
    for first in firsts:
        yield from _rows(40, first)


def failures(folder: Path) -> list[str]:
    """What each rank says where one of them fails to take in what both were trained on."""
    messages = []
    for number, args in enumerate(({}, {"save_strategy": "steps", "save_steps": 1}, {"max_steps": 1})):
        buffer = ReplayBuffer(100, storage="memory")
        streams = {"a": Tokens(30, 1, length=8), "memory": buffer}
        trainer = make(folder / f"failing-{number}", streams, args={"max_steps": 6, **args})
        feeding, step = buffer.feeding, 1 if "max_steps" in args else 3
        assert feeding is not None
        close = feeding.close

        def failing(batch: Any, close: Any = close, step: int = step) -> None:
            if batch.plan.step == step and rank_and_size()[0] == 1:
                raise OSError("disk on fire")
            close(batch)

        feeding.close = failing  # type: ignore[method-assign]
        messages.append(message_of(trainer.train))
        messages.append(str((folder / f"failing-{number}" / "checkpoint-3").exists()))
    for selection, streams in (("ClassBalanced", {"a": Tokens(30, 1)}), ("Ring", {"a": Tokens(30, 1)})):
        named = {**streams, "memory": ReplayBuffer(9, selection)}
        messages.append(message_of(make(folder / f"failing-{selection}", named).train))
    return messages


def by_hand(folder: Path) -> dict[str, Any]:
    """A buffer on disk that every rank fills before there is a trainer."""
    buffer = ReplayBuffer(12, storage=STORAGES["disk"](folder / "by-hand" / "rows"), is_online=False)
    buffer.remember("old", Tokens(40, 7, length=8))
    watch = Watch()
    trainer = make(folder / "by-hand", {"new": Tokens(30, 1, length=8), "memory": buffer}, watch)
    trainer.train()
    return results_of(trainer, watch)


def main() -> None:
    folder = Path(sys.argv[1])
    gc.collect = lambda *_: 0
    scenarios = {name: globals()[name](folder) for name in sys.argv[2:]}
    end_with(scenarios, folder, f"replay-{rank_and_size()[1]}-{'-'.join(sys.argv[2:])}")


if __name__ == "__main__":
    main()
