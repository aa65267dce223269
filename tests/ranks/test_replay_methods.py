"""Replay's methods on two ranks: what one rank does, to rounding."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixer.distributed.collectives import RankSync
from replay import InMemory, ReplayBuffer, ReplayRatio
from replay.feeding.features import extract_features
from replay.memory.kept_rows import gather_rows
from replay.methods import AGEM, DER, DERPlusPlus
from replay.retrieval import MIR
from replay.storage import Row
from tests.helpers import Tokens, build_model, weights_of
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some
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
}


def run(folder: Path, name: str, checkpoint: str | None = None, **changes: Any) -> Any:
    options = {"max_steps": 6, "batch_size": 11, "per_device_train_batch_size": 2, **CASES[name](), **changes}
    trainer = make_trainer(folder, **options)
    trainer.train(resume_from_checkpoint=checkpoint)
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


def same(name: str, folder: Path) -> Any:
    return found_in(run(folder / name, name))


class Small(Classifier):
    """On rank 1 there is no room for more than one row in a backward."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = super().forward(x, labels)
        if output["logits"].requires_grad and len(x) > 1 and torch.distributed.get_rank() == 1:
            output["logits"].register_hook(no_room)
        return output


def no_room(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("no room")


def repeated(folder: Path) -> list[torch.Tensor]:
    ends = []
    for name in REPEATED:
        trainer = run(folder / "repeated", name, model=Small(), auto_find_batch_size=True)
        assert trainer._parts.run.splitting.cap.max_samples == 1
        ends.append(weights_of(trainer.model).double())
    return ends


def resumed(name: str, folder: Path) -> Any:
    name = name.removeprefix("resumed ")
    run(folder / f"cut-{name}", name, save_strategy="steps", save_steps=3)
    checkpoint = str(folder / f"cut-{name}" / "checkpoint-3")
    return found_in(run(folder / f"resumed-{name}", name, checkpoint))


def features(folder: Path) -> list[Any]:
    return [extract_features(Classifier(), Points(13), batch_size=4), extract_features(Classifier(), Points(1))]


def refusals(folder: Path) -> dict[str, str]:
    def refused(**changes: Any) -> str:
        return message_of(lambda: make_trainer(folder / "refused", **changes).train())

    each_batch = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return {
        "tokens": refused(methods=[AGEM()], model=build_model("llama"), new=Tokens(40, 3), max_tokens=30),
        "sparse": refused(methods=[AGEM()], model=_Sparse()),
        "each_batch": refused(methods=[AGEM()], accelerator_config=each_batch),
        "mir": refused(buffer=ReplayBuffer(12, retrieval="MIR"), model=_Sparse()),
    }


def failures(folder: Path) -> dict[str, str]:
    """What each rank says where rank 1 fails in what ranks do for themselves before they talk to each other."""
    rank, found = torch.distributed.get_rank(), {}
    for name, (make, owner, part) in FAILING.items():
        trainer = make_trainer(folder / f"failing {name}", [], buffer=(buffer := make()), batch_size=11)
        if rank == 1:
            setattr(owner(buffer.feeding), part, _fail)
        found[name] = message_of(trainer.train)
    odd = {rank: Row({"kept"} if rank else "kept")}
    return {**found, "row": message_of(lambda: gather_rows(RankSync(2), odd))}


FAILING: dict[str, tuple[Callable[[], ReplayBuffer], Callable[[Any], Any], str]] = {
    "gradient": (lambda: ReplayBuffer(20, retrieval=MIR(9)), lambda feeding: feeding._run.passes, "_backward"),
    "candidates": (lambda: ReplayBuffer(20, retrieval=MIR(9)), lambda feeding: feeding._run.passes, "load"),
}


def _fail(*_: Any) -> None:
    raise OSError("disk on fire")


class _Sparse(Classifier):
    """Has a layer whose gradient cannot be averaged by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)


FEW = ("DER++", "A-GEM", "MIR")
REPEATED = ("DER", "DER++", "A-GEM")
REFUSED = {
    "tokens": "max_tokens_per_micro_batch: A rank may have samples of memory alone",
    "sparse": "AGEM needs the gradients of memory and of new samples apart: module.table",
    "each_batch": "sync_each_batch must not be set with AGEM",
    "mir": "retrieval=MIR takes a gradient of new samples by itself, which cannot be done here: module.table",
}


results = launched(
    *(*(partial(same, name) for name in FEW), partial(resumed, "resumed DER++"), features),
    rare=[
        *(*(partial(same, name) for name in CASES if name not in FEW), repeated, partial(resumed, "resumed MIR")),
        *(refusals, failures),
    ],
)


@pytest.mark.parametrize("name", some(CASES, FEW))
def test_two_ranks_do_what_one_does(name: str, results: Results, tmp_path: Path) -> None:
    expected = found_in(run(tmp_path, name))
    first, second = (result[name] for result in results)
    assert torch.equal(first["weights"], second["weights"])
    # A language model's loss is in single precision.
    tolerance = 1e-7 if name.endswith("tokens") else 1e-12
    torch.testing.assert_close(first["weights"], expected["weights"], rtol=0, atol=tolerance)
    torch.testing.assert_close(first["terms"], expected["terms"], rtol=1e-5, atol=1e-8)
    for key in ("numbers", "number", "task", "label"):
        assert torch.equal(first[key], second[key]), key
        assert torch.equal(first[key], expected[key]), key
    assert name not in ("A-GEM", "A-GEM on two sides") or first["numbers"].max() == 1.0
    assert not name.startswith("DER") or first["terms"].max() > 0


@pytest.mark.parametrize("name", some(["DER++", "MIR"], ["DER++"]))
def test_resumed_runs_go_on_to_the_bit(name: str, results: Results) -> None:
    for result in results:
        for key in ("weights", "number", "task", "label"):
            assert torch.equal(result[f"resumed {name}"][key], result[name][key]), key


def test_features_of_all_on_each_rank(results: Results) -> None:
    for result in results:
        for found, number in zip(result["features"], (13, 1), strict=True):
            np.testing.assert_allclose(found, extract_features(Classifier(), Points(number)), rtol=1e-6)


@pytest.mark.full
def test_a_step_that_is_repeated_on_both_ranks_comes_out_the_same(results: Results) -> None:
    for result in results:
        for name, weights in zip(REPEATED, result["repeated"], strict=True):
            torch.testing.assert_close(weights, result[name]["weights"], rtol=0, atol=1e-12)


@pytest.mark.full
def test_what_cannot_be_done_is_refused_at_the_start(results: Results) -> None:
    for result in results:
        for name, message in REFUSED.items():
            assert result["refusals"][name].startswith(f"InvalidValueError: {message}"), result["refusals"][name]


@pytest.mark.full
def test_an_error_on_one_rank_ends_both(results: Results) -> None:
    other, failed = (result["failures"] for result in results)
    assert failed.keys() == other.keys() == {*FAILING, "row"}
    for name, message in failed.items():
        assert other[name].startswith(f"RemoteError: rank 1 failed: {message.rstrip('.')}")
        assert message == "OSError: disk on fire" or name == "row"
    assert failed["row"].startswith("InvalidTypeError: sample: a builtins.set cannot be kept in a buffer")
