"""Two nodes: two agents of torchrun with a rendezvous by c10d, on one disk and with a disk each."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from mixer import Ledger, MixingTrainer
from replay import ReplayBuffer, ReplayRatio
from replay.storage import OnDisk
from tests.helpers import Tokens, arguments, build_model, three_streams
from tests.mixer.checkpoint.test_resume import build, end_of
from tests.ranks.launch import by_torchrun, message_of
from tests.ranks.warm import Results, on_ranks

_ON_DISKS = ("streams", "losses", "clock", "evaluations")  # the ledger is the first node's


class _Rows(IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        yield from Tokens(50, 4).rows


def training(folder: Path, **changes: Any) -> dict[str, Any]:
    whole = build(folder, **changes)
    whole.train()
    end = end_of(whole)
    resumed = build(folder, **changes)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    parts = [part for part in end if whole.is_world_process_zero() or part not in _ON_DISKS]
    gone_on = end_of(resumed)
    return {"end": end, "different": [part for part in parts if gone_on[part] != end[part]]}


def shared(folder: Path) -> dict[str, Any]:
    return training(folder / "run")


def _own(folder: Path) -> Path:
    return folder / f"node-{torch.distributed.get_rank()}"


def own(folder: Path) -> dict[str, Any]:
    """The files of each node, and from where they go on together after the second one lost part of its newest."""
    folder = _own(folder) / "run"
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
    checkpoint = _own(folder) / "rows" / "checkpoint-2"
    for saved in (None, str(checkpoint)):
        args = arguments(checkpoint.parent, max_steps=4, save_strategy="steps", save_steps=2, save_on_each_node=True)
        rules = {"mixing": [1, 1, 1, 1], "batch_size": 8}
        streams = {**three_streams(), "rows": _Rows()}
        trainer = MixingTrainer(build_model("llama"), args, train_dataset=streams, **rules)
        trainer.train(resume_from_checkpoint=saved)
    return sorted(path.name for pattern in ("rng_state*", "rows-*") for path in checkpoint.glob(pattern))


def refusals(folder: Path) -> dict[str, str]:
    rank, shared, own = torch.distributed.get_rank(), folder, _own(folder)
    messages = {
        "not shared": message_of(build(own / "not-shared").train),
        "crowded": message_of(build(shared / "crowded", save_on_each_node=True).train),
        "learning rate": message_of(build(shared / "other", learning_rate=0.1 + 0.1 * rank).train),
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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return by_torchrun(tmp_path_factory.mktemp("nodes"), shared, own, rows, refusals, nodes=2)


def test_two_nodes_train_as_two_ranks_of_one_node_and_both_go_on(results: Results, tmp_path: Path) -> None:
    for result, one_node in zip(results, on_ranks(tmp_path, shared), strict=True):
        for part in ("weights", "logs"):
            assert result["shared"]["end"][part] == one_node["shared"]["end"][part]
        assert result["own"]["end"]["weights"] == result["shared"]["end"]["weights"]
        assert result["shared"]["different"] == result["own"]["different"] == []
    expected, found = (Ledger(path / "run" / "ledger").to_pandas() for path in (tmp_path, results[0]["folder"]))
    assert found.equals(expected)


def test_each_node_keeps_whole_checkpoints_and_the_first_one_the_ledger(results: Results) -> None:
    first, second = (result["own"]["files"] for result in results)
    assert second == [name for name in first if not name.startswith("ledger/")] != first
    needed = {"model.safetensors", "optimizer.pt", "mixing.json", "rng_state_0.pth", "rng_state_1.pth", "complete.json"}
    assert needed <= {name.removeprefix("checkpoint-10/") for name in second}
    of_ranks = ["rng_state_0.pth", "rng_state_1.pth", "rows-0.json", "rows-1.json"]
    assert [result["rows"] for result in results] == [of_ranks] * 2


def test_nodes_go_on_from_the_newest_checkpoint_that_is_whole_on_both(results: Results) -> None:
    for node, own in enumerate(result["own"] for result in results):
        assert own["newest"] == str(results[0]["folder"] / f"node-{node}" / "run" / "checkpoint-8")
        assert own["asked"].startswith("InvalidValueError: Rank 1: Cannot resume from")
        assert "optimizer.pt is torn" in own["asked"]
        assert own["resumed"]
        assert own["lost"].startswith("InvalidValueError: resume_from_checkpoint: no checkpoint in ")
        assert "; rank 1's node has none. Copy one to all" in own["lost"]


def test_what_cannot_go_well_ends_in_the_same_error_on_both(results: Results) -> None:
    told = {
        "not shared": ("rank 1 does not see the files of rank 0", "save_on_each_node=True"),
        "crowded": ("ranks [0, 1], each the first of a node, would write the same", "save_on_each_node=False"),
        "learning rate": ("on rank 1 training.learning_rate is 0.2 instead of 0.1.",),
        "seed": ("mixture.planner.seed is 1 instead of 0", "training.seed is 1 instead of 0"),
        "resume": ("on rank 1 train() is 'resumes' instead of 'begins'.",),
        "order": ("on rank 1 streams is ['c', 'b', 'a'] instead of ['a', 'b', 'c'].",),
        "names": ("on rank 1 streams is ['c1', 'b1', 'a1'] instead of ['a0', 'b0', 'c0'].",),
        "buffer": ("ranks [0, 1], each the first of a node", "on each node's own disk"),
        "mixture": ("on rank 1 mixture.weights.manual is [",),
    }
    for found in (result["refusals"] for result in results):
        assert found["own buffer"] == "no error"  # on the disk of each node
        for case, messages in told.items():
            assert "ValueError: " in found[case]
            assert all(message in found[case] for message in messages), found[case]
