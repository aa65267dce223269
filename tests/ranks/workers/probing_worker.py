"""What each of two ranks does in the tests of probed runs: `torchrun ... probing_worker.py FOLDER`."""

import gc
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import DataCollatorWithFlattening

from mixer import BalancedPiKE, MixingTrainer, PiKE, Probing, schedules
from tests.helpers import build_model, three_streams
from tests.mixer.probed import BIG, ProbedRun, assert_found, build, is_untouched, loss_of, train
from tests.mixer.trainer.observers.test_probed_numbers import Opaque
from tests.mixer.trainer.observers.test_probing_resume import SAVED, probed_end
from tests.ranks.launch import end_with, message_of
from tests.ranks.workers.recovery_worker import Fault

SKETCH = Probing(sketch_size=BIG)
HELD = Probing(mode="exact", exact_accumulate=True)
SIZES = (13, 2, 5, 3)  # of which a rank has none in some micro-batches


def changing() -> schedules.Schedule:
    return schedules.Function(lambda step, size: SIZES[step % len(SIZES)], initial=SIZES[0])


CASES: dict[str, Any] = {
    "sketched": lambda: {"probe": SKETCH},
    "held": lambda: {"probe": HELD},
    "a mean over rows": lambda: {"model": "bert-classifier", "probe": HELD},
    "one stream each": lambda: {"probe": Probing(homogeneous=True, sketch_size=BIG)},
    "weighed losses": lambda: {
        "mixing": BalancedPiKE(uses_loss_weights=True, interval_steps=1),
        "probe": SKETCH,
    },
    "by tokens": lambda: {"probe": SKETCH, "max_tokens_per_micro_batch": 40},
    "by length": lambda: {"probe": SKETCH, "args": {"train_sampling_strategy": "group_by_length"}},
    "checkpointing": lambda: {"probe": SKETCH, "args": {"gradient_checkpointing": True}},
    "packed": lambda: {  # but where a rank has a single sample, whose row is one
        "probe": SKETCH,
        "data_collator": DataCollatorWithFlattening(),
        "train_dataset": {
            name: [{"input_ids": list(range(2, 5 + (i + k) % 4))} for i in range(9)] for k, name in enumerate("abc")
        },
        "args": {"per_device_train_batch_size": 2},
    },
    "rows unknown": lambda: {
        "model": Opaque(),
        "probe": SKETCH,
        "train_dataset": three_streams("sequence-classification"),
    },
}
LOSSES = {
    "packed": lambda model, inputs: model(**inputs, num_items_in_batch=torch.tensor(1)).loss,
    "rows unknown": lambda model, inputs: model(**inputs)["loss"] * len(inputs["labels"]),
}


def gathered(groups: list[Any]) -> list[Any]:
    """Those of all ranks."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, groups)
    return list(chain.from_iterable(parts))


def _problem(run: ProbedRun, **options: Any) -> str:
    try:
        assert sorted(run.found) == [1, 2, 3, 4]
        assert_found(run.frame, run.expected, **options)
        assert is_untouched(run.trainer.model)
    except AssertionError as error:
        return f"wrong: {error!r}"
    return ""


def _build(folder: Path, **changes: Any) -> MixingTrainer:
    args = {"max_steps": 4, "per_device_train_batch_size": 3, **changes.pop("args", {})}
    return build(folder, **{"mixing": PiKE(1), "batch_size": changing(), "epoch_size": 999, "args": args, **changes})


def trained(folder: Path) -> dict[str, Any]:
    """Runs beside the reference: what is wrong, if anything is, and what both ranks have to have alike."""
    results = {}
    for name, changes in CASES.items():
        trainer = _build(folder / name, **changes())
        is_by_micro_batch = name in ("one stream each", "packed")
        run = train(trainer, LOSSES.get(name, loss_of), is_by_micro_batch, gather=gathered)
        results[name] = {
            "problem": _problem(run),
            "frame": run.frame.to_json(double_precision=15),
            "weights": [value.hex() for value in trainer.mixing.weights.values()],
            "has_paddings": bool(gathered([run.num_paddings] * bool(run.num_paddings))),
        }
    return results


def same_training(folder: Path) -> float:
    """Largest difference of a probed run's weights from a plain one's."""
    ends = []
    for interval in (None, 1):
        probe = Probing(interval_steps=interval, sketch_size=8)
        trainer = _build(folder / str(interval), mixing="Uniform", probe=probe)
        trainer.train()
        ends.append([one.detach() for one in trainer.model.parameters()])
    return max(float((one - other).abs().max()) for one, other in zip(*ends, strict=True))


def repeated(folder: Path) -> dict[str, Any]:
    """A run of which rank 1 cannot hold more than 2 rows."""
    model = build_model("llama")
    Fault(model, where="backward")
    trainer = _build(
        folder, model=model, probe=SKETCH, args={"auto_find_batch_size": True, "per_device_train_batch_size": 4}
    )
    run = train(trainer, plain=build_model("llama"), gather=gathered)
    return {"problem": _problem(run), "cap": trainer._parts.run.loader.cap.max_samples}


def resumed(folder: Path) -> list[str]:
    """Names what differs between a run and ones that went on from the middle of it."""
    different = []
    for name, mixing in (("pike", PiKE), ("balanced", BalancedPiKE)):

        def make(name: str = name, mixing: Any = mixing) -> MixingTrainer:
            args = {**SAVED, "max_steps": 6}
            return _build(folder / name, mixing=mixing(interval_steps=2), probe=Probing(), args=args)

        whole = make()
        whole.train()
        expected = probed_end(whole) if whole.is_world_process_zero() else {}
        for step in (2, 3):
            again = make()
            again.train(resume_from_checkpoint=str(folder / name / f"checkpoint-{step}"))
            end = probed_end(again) if expected else {}
            different += [f"{name} {step}: {part}" for part in expected if end[part] != expected[part]]
            dist.barrier()
    return different


def refused(folder: Path) -> str:
    """The message where there are too many ranks."""
    return message_of(lambda: _build(folder, probe=Probing(mode="exact")))


def main() -> None:
    folder = Path(sys.argv[1])
    gc.collect = lambda *_: 0  # takes longer at each run's beginning than the run
    names = ("trained", "same_training", "repeated", "resumed", "refused")
    results = {name: globals()[name](folder / name) for name in names}
    end_with(results, folder, "probing")


if __name__ == "__main__":
    main()
