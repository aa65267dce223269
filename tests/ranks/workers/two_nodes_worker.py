"""What the one rank of each of two nodes does: `torchrun --nnodes 2 ... two_nodes_worker.py SHARED OWN`."""

import gc
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from mixer import MixingTrainer
from replay import ReplayBuffer, ReplayRatio
from replay.storage import OnDisk
from tests.helpers import Tokens, arguments, build_model, three_streams
from tests.mixer.trainer.checkpointing.test_resume import build, end_of
from tests.ranks.launch import end_with, message_of

_ON_DISKS = ("streams", "losses", "clock", "evaluations")  # the ledger is the first node's


class _Rows(IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        yield from Tokens(50, 4).rows


def training(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run, and the same one that goes on after its first checkpoint."""
    whole = build(folder, **changes)
    whole.train()
    end = end_of(whole)
    resumed = build(folder, **changes)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    parts = [part for part in end if whole.is_world_process_zero() or part not in _ON_DISKS]
    gone_on = end_of(resumed)
    return {"end": end, "different": [part for part in parts if gone_on[part] != end[part]]}


def own_disks(folder: Path) -> dict[str, Any]:
    """The files of each node, and from where they go on together after the second one lost part of its newest."""
    results = training(folder, save_on_each_node=True)
    newest = folder / "checkpoint-10"
    results["files"] = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if torch.distributed.get_rank() == 1:
        (newest / "optimizer.pt").write_bytes(b"torn")
    trainer = build(folder, save_on_each_node=True)
    results["newest"] = trainer.newest_checkpoint()
    results["asked"] = message_of(lambda: trainer.train(resume_from_checkpoint=str(newest)))
    trainer.train(resume_from_checkpoint=True)
    results["resumed"] = end_of(trainer)["weights"] == results["end"]["weights"]
    if torch.distributed.get_rank() == 1:  # another machine came in the place of this one
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    results["lost"] = message_of(build(folder, save_on_each_node=True).newest_checkpoint)
    return results


def rows(folder: Path) -> list[str]:
    """Files of ranks in a checkpoint of a run with an iterable stream, from which it goes on."""

    def trainer() -> MixingTrainer:
        args = arguments(folder, max_steps=4, save_strategy="steps", save_steps=2, save_on_each_node=True)
        streams = {**three_streams(), "rows": _Rows()}
        return MixingTrainer(build_model("llama"), args, train_dataset=streams, mixing=[1, 1, 1, 1], batch_size=8)

    trainer().train()
    trainer().train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    checkpoint = folder / "checkpoint-2"
    return sorted(path.name for pattern in ("rng_state*", "rows-*") for path in checkpoint.glob(pattern))


def refusals(shared: Path, own: Path) -> dict[str, str]:
    """The errors of folders, and of nodes that are to do different runs."""
    rank = torch.distributed.get_rank()
    messages = {
        "not shared": message_of(build(own / "not-shared").train),
        "crowded": message_of(build(shared / "crowded", save_on_each_node=True).train),
        "learning rate": message_of(build(shared / "other", learning_rate=0.1 + 0.1 * rank).train),
        "logging": message_of(build(shared / "other", logging_steps=2 + rank).train),
        "seed": message_of(build(shared / "other", seed=rank).train),
        "resume": message_of(lambda: build(shared / "other").train(resume_from_checkpoint=[None, True][rank])),
    }
    turned = dict(reversed(three_streams().items())) if rank else three_streams()
    for name, streams in (("order", turned), ("names", {f"{name}{rank}": data for name, data in turned.items()})):
        args = arguments(shared / "other", max_steps=1)
        trainer = MixingTrainer(build_model("llama"), args, train_dataset=streams, mixing="Uniform", batch_size=9)
        messages[name] = message_of(trainer.train)
    for name, folder in (("buffer", shared), ("own buffer", own)):
        buffer = ReplayBuffer(8, storage=OnDisk(folder / "rows"))
        streams = {**three_streams(), "memory": buffer}
        options = {"args": arguments(own / "buffer"), "mixing": ReplayRatio(0.1)}
        messages[name] = message_of(partial(MixingTrainer, build_model("llama"), train_dataset=streams, **options))
    other = build(shared / "other")
    other.mixing.set_weights({"a": 1, "b": 1 + rank, "c": 1})
    return {**messages, "mixture": message_of(other.train)}


def main() -> None:
    shared, own = Path(sys.argv[1]), Path(sys.argv[2])
    gc.collect = lambda *_: 0  # takes longer at each run's beginning than the run
    results: dict[str, Any] = {"shared": training(shared / "run")}
    if own != shared:
        results["own"] = own_disks(own / "run")
        results["rows"] = rows(own / "rows")
        results["refusals"] = refusals(shared, own)
    end_with(results, shared, "results")


if __name__ == "__main__":
    main()
