"""What each rank does in the tests of streams that differ; `torchrun ... forms_worker.py FOLDER`."""

import contextlib
import gc
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from mixer import MixingTrainer, Stream
from mixer.distributed.ending import end_together, import_early
from tests.helpers import GradientRecorder, Tokens, arguments
from tests.mixer.forms import NAMES, multi_task, task_data, task_streams
from tests.ranks.launch import message_of

WEIGHTS = {"topic": 7, "stars": 1, "flags": 2, "tags": 4}
TIMINGS = 4


def unequal_streams() -> list[Stream]:
    return task_streams(topic={"loss_weight": 2.0})


def train(folder: Path, batch_size: int, micro: int, **options: Any) -> tuple[MixingTrainer, Tensor]:
    recorder = GradientRecorder()
    args = arguments(folder, per_device_train_batch_size=micro, max_steps=TIMINGS)
    options = {"train_dataset": unequal_streams(), "mixing": WEIGHTS, "callbacks": [recorder], **options}
    trainer = MixingTrainer(multi_task(), args, batch_size=batch_size, **options)
    trainer.train()
    return trainer, torch.stack(recorder.gradients)


class _Rows(IterableDataset[dict[str, Tensor]]):
    def __init__(self, name: str):
        self.rows = task_data(name, 8, 7)

    def __iter__(self) -> Any:
        return iter(self.rows.rows)


def evaluated(folder: Path) -> dict[str, Any]:
    sets = {name: task_data(name, 8, 7) for name in NAMES}
    trainer = MixingTrainer(multi_task(), arguments(folder), train_dataset=task_streams(), eval_dataset=sets)
    rows = {name: _Rows(name) for name in NAMES}
    prediction = trainer.predict(sets["stars"], metric_key_prefix="test_stars")
    return {
        "sets": trainer.evaluate(),
        "iterable": trainer.evaluate(rows),
        "predictions": [list(prediction.predictions.shape), prediction.metrics["test_stars_loss"]],
    }


class _WrongOnOneRank(Tokens):
    """Rows of which this rank reads labels that are no classes, in a later step."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)
        return {**row, "labels": row["labels"] + 5} if dist.get_rank() and self.is_wrong else row

    is_wrong = False


class _Turn(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _WrongOnOneRank.is_wrong = state.global_step == 2


def labels_of_one_rank(folder: Path) -> str:
    streams = [*task_streams(["stars"]), Stream("topic", _WrongOnOneRank(12, 1, "sequence-classification"))]
    args = arguments(folder, max_steps=TIMINGS)
    trainer = MixingTrainer(multi_task(), args, train_dataset=streams, batch_size=8, callbacks=[_Turn()])
    return message_of(trainer.train)


def unused_heads(folder: Path) -> list[str]:
    def made(**changes: Any) -> str:
        args = arguments(folder, **changes)
        return message_of(lambda: MixingTrainer(multi_task(), args, train_dataset=task_streams(), batch_size=8))

    def checkpointed() -> None:
        model = multi_task()
        model.gradient_checkpointing_enable()
        MixingTrainer(model, arguments(folder), train_dataset=task_streams(), batch_size=8)

    return [
        made(ddp_find_unused_parameters=False),
        made(gradient_checkpointing=True),
        message_of(checkpointed),
        made(ddp_find_unused_parameters=True),
    ]


def threads() -> list[str]:
    """Names of this process's threads that are gloo's, where the system says them."""
    folder = Path("/proc/self/task")
    names = []
    for task in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
            names.append((task / "comm").read_text().strip())
    return [name for name in names if "gloo" in name.lower()]


def main() -> None:
    folder = Path(sys.argv[1])
    import_early()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    results: dict[str, Any] = {"unused": unused_heads(folder)}
    for name, batch_size, micro in (("unequal", 14, 64), ("parts", 14, 2), ("lonely", 3, 64)):
        trainer, gradients = train(folder / name, batch_size, micro)
        torch.save({"gradients": gradients, "log": trainer.state.log_history}, folder / f"{name}-{rank}.pt")
    conflict, gradients = train(folder / "conflict", 14, 64, conflict="pcgrad")
    torch.save({"gradients": gradients, "log": conflict.state.log_history}, folder / f"conflict-{rank}.pt")
    results["evaluated"] = evaluated(folder)
    results["labels"] = labels_of_one_rank(folder)
    holder: dict[str, Any] = {"group": dist.group.WORLD, "trainers": (trainer, conflict)}
    holder["itself"] = holder  # only a collection of cycles lets go of the group
    results["before"] = threads()
    gc.disable()
    del holder, trainer, conflict
    end_together()
    results["after"] = threads()
    torch.save(results, folder / f"results-{rank}.pt")


if __name__ == "__main__":
    main()
