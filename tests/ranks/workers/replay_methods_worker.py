"""What each rank does in the tests of replay's methods: `torchrun ... replay_methods_worker.py FOLDER SCENARIO...`."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixer.distributed.collectives import RankSync
from replay import InMemory, ReplayBuffer, ReplayRatio
from replay.feeding.features import extract_features
from replay.memory.kept_rows import gather_rows
from replay.methods import AGEM, DER, DERPlusPlus
from replay.retrieval import MIR
from replay.selection import GradientDiversity
from replay.storage import Row
from tests.helpers import Tokens, build_model, weights_of
from tests.ranks.launch import end_with, message_of
from tests.replay.methods.runs import Classifier, Points, TwoHeads, make_trainer

SIDES = {"learning_rate": 0.5, "ddp_find_unused_parameters": True}


def two_sides() -> dict[str, Any]:
    """New samples reach one head, those of memory the other, and a layer is reached by none."""
    new, old = Points(seed=1), Points(seed=2)
    new.labels[:], old.labels[:] = 2, 1
    buffer = ReplayBuffer(12, is_online=False)
    buffer.remember("old", old)
    return {"model": TwoHeads(), "new": new, "buffer": buffer, "methods": [AGEM()], **SIDES}


def dark_tokens() -> dict[str, Any]:
    return {"model": build_model("llama").double(), "new": Tokens(40, 3), "methods": [DERPlusPlus(top_k=3)]}


CASES: dict[str, Any] = {
    "DER": lambda: {"methods": [DER(alpha=0.7)]},
    "DER++": lambda: {"methods": [DERPlusPlus(second="second")], "second": True, "batch_size": 9},
    "DER++ of contents": lambda: {"methods": [DERPlusPlus()], "buffer": ReplayBuffer(12, storage=InMemory())},
    "DER++ of tokens": dark_tokens,
    "A-GEM": lambda: {"methods": [AGEM()], "learning_rate": 0.5},
    "A-GEM on two sides": two_sides,
    "A-GEM of memory alone": lambda: {
        "methods": [AGEM()],
        "mixing": ReplayRatio(0.8),
        "batch_size": 2,
        "max_steps": 12,
    },
    "MIR": lambda: {"buffer": ReplayBuffer(20, retrieval=MIR(candidates=9, learning_rate=1.0))},
    "gradients": lambda: {"buffer": ReplayBuffer(6, GradientDiversity(3))},
}
SMALL = ("DER++", "A-GEM", "MIR")


def run(folder: Path, name: str, **changes: Any) -> Any:
    """Trains a case; on one rank or several it is the same run."""
    options = {"max_steps": 6, "batch_size": 11, "per_device_train_batch_size": 2, **CASES[name](), **changes}
    trainer = make_trainer(folder, **options)
    trainer.train()
    return trainer


def found_in(trainer: Any) -> dict[str, Any]:
    numbers = [entry.get("projected/memory", 0.0) for entry in trainer.state.log_history]
    terms = [value for entry in trainer.state.log_history for key, value in entry.items() if key.startswith("term/")]
    entries = trainer.buffer.entries
    return {
        "weights": weights_of(trainer.model).double(),
        "numbers": torch.tensor(numbers),
        "terms": torch.tensor(terms),
        **{key: torch.from_numpy(entries[key].copy()) for key in entries},
    }


def same(folder: Path) -> None:
    for name in CASES:
        trainer = run(folder / "same", name)
        torch.save(found_in(trainer), folder / f"same-{name}-{trainer.args.process_index}.pt")


class Small(Classifier):
    """On rank 1 there is no room for more than one row in a backward."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = super().forward(x, labels)
        if output["logits"].requires_grad and len(x) > 1 and torch.distributed.get_rank() == 1:
            output["logits"].register_hook(no_room)
        return output


def no_room(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("no room")


def repeated(folder: Path) -> None:
    for name in ("DER", "DER++", "A-GEM"):
        trainer = run(folder / "repeated", name, model=Small(), auto_find_batch_size=True)
        assert trainer._parts.run.loader.cap.max_samples == 1
        torch.save(found_in(trainer), folder / f"repeated-{name}-{trainer.args.process_index}.pt")


def resumed(folder: Path) -> None:
    for name in SMALL:
        cut = {"save_strategy": "steps", "save_steps": 3}
        run(folder / f"cut-{name}", name, **cut)
        options = {"max_steps": 6, "batch_size": 11, "per_device_train_batch_size": 2, **CASES[name]()}
        trainer = make_trainer(folder / f"resumed-{name}", **options)
        trainer.train(resume_from_checkpoint=str(folder / f"cut-{name}" / "checkpoint-3"))
        torch.save(found_in(trainer), folder / f"resumed-{name}-{trainer.args.process_index}.pt")


def by_tokens(folder: Path) -> dict[str, Any]:
    """Micro-batches cut by tokens, of which ranks have different numbers of each stream."""
    results = {}
    for name, changes in (("DER", {"methods": [DER()]}), ("MIR", {"buffer": ReplayBuffer(12, retrieval="MIR")})):
        trainer = make_trainer(
            folder / name, model=build_model("llama"), new=Tokens(40, 3), max_tokens=30, batch_size=11, **changes
        )
        trainer.train()
        results[name] = float(weights_of(trainer.model).sum())
    return results


def features(folder: Path) -> dict[str, Any]:
    data = Points(13)
    return {
        "all": extract_features(Classifier(), data, batch_size=4).tolist(),
        "one": extract_features(Classifier(), Points(1)).tolist(),
    }


def refusals(folder: Path) -> dict[str, str]:
    def agem(**changes: Any) -> str:
        return message_of(lambda: make_trainer(folder / "refused", [AGEM()], **changes).train())

    each_batch = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    found = {
        "tokens": agem(model=build_model("llama"), new=Tokens(40, 3), max_tokens=30),
        "sparse": agem(model=_Sparse()),
        "each_batch": agem(accelerator_config=each_batch),
    }
    mir = ReplayBuffer(12, retrieval="MIR")
    found["mir"] = message_of(make_trainer(folder / "refused", buffer=mir, model=_Sparse()).train)
    return found


def failures(folder: Path) -> dict[str, str]:
    """What each rank says where rank 1 fails in what ranks do for themselves before they talk to each other."""
    rank = torch.distributed.get_rank()
    found = {}
    for name, (make, owner, part) in FAILING.items():
        buffer = make()
        methods = [DER()] if name == "labels" else []  # then ranks talk on about logits
        trainer = make_trainer(folder / f"failing {name}", methods, buffer=buffer, batch_size=11)
        if rank == 1:
            setattr(owner(trainer, buffer), part, _fail)
        found[name] = message_of(trainer.train)
    MIR._losses = _LOSSES  # type: ignore[method-assign]
    odd = {rank: Row({"kept"} if rank else "kept")}
    found["row"] = message_of(lambda: gather_rows(RankSync(2), odd))
    return found


FAILING: dict[str, Any] = {
    "scores": (
        lambda: ReplayBuffer(6, GradientDiversity(3)),
        lambda trainer, buffer: buffer.feeding.scorer,
        "_own_scores",
    ),
    "labels": (
        lambda: ReplayBuffer(6, "ClassBalanced", storage=InMemory()),
        lambda trainer, buffer: buffer,
        "read_labels",
    ),
    "gradient": (
        lambda: ReplayBuffer(20, retrieval=MIR(9)),
        lambda trainer, buffer: buffer.feeding._run.runs,
        "_backward",
    ),
    "candidates": (
        lambda: ReplayBuffer(20, retrieval=MIR(9)),
        lambda trainer, buffer: buffer.feeding._run.runs,
        "load",
    ),
    "losses": (lambda: ReplayBuffer(20, retrieval=MIR(9)), lambda trainer, buffer: MIR, "_losses"),
}
_LOSSES = MIR._losses


def _fail(*_: Any) -> None:
    raise OSError("disk on fire")


class _Sparse(Classifier):
    """Has a layer whose gradient cannot be averaged by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)


def main() -> None:
    folder = Path(sys.argv[1])
    results = {name: globals()[name](folder) for name in sys.argv[2:]}
    end_with(results, folder, "replay_methods")


if __name__ == "__main__":
    main()
