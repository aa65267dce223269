"""Which rows a run was trained on, against what its collator saw."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformers import TrainerCallback, default_data_collator

from mixer import Exposure, Grouping, LossChange, MixingTrainer, Stream, schedules
from mixer.tools.cli.entry import main
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import InOrder, Tokens
from tests.mixer.trainer.runs import make
from tests.refusals import refused

SIZES = {"a": 20, "b": 11, "c": 6}
Seen = dict[int, set[tuple[str, int]]]


class Numbered(Tokens):
    """Rows that tell which they are; some cannot be read."""

    def __init__(self, name: str, size: int, broken: Iterable[int] = ()):
        super().__init__(size, seed=size)
        self.first, self.broken = 1_000 * "abc".index(name), frozenset(broken)

    def __getitem__(self, index: int) -> Any:
        if index in self.broken:
            raise OSError("gone")
        return {**super().__getitem__(index), "row": self.first + index}


class Uneven(Numbered):
    """Rows that tell their length."""

    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "length": index * 7 % 20}


class Recording(TrainerCallback):
    """Notes the rows of each step, as the collator sees them."""

    def __init__(self) -> None:
        self.steps: Seen = {}
        self.present: set[tuple[str, int]] = set()

    def collate(self, samples: list[dict[str, Any]]) -> Any:
        for sample in samples:
            which, index = divmod(int(sample.pop("row")), 1_000)
            sample.pop("length", None)
            self.present.add(("abc"[which], index))
        return default_data_collator(samples)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.present.clear()  # a sample of the check at construction

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps[state.global_step], self.present = self.present, set()


def streams(**options: dict[str, Any]) -> list[Stream]:
    return [Stream(name, Numbered(name, size), **options.get(name, {})) for name, size in SIZES.items()]


def growing() -> schedules.Schedule:
    return schedules.SmoothedLossChange(0.02, 0.5, 1, factor=1.4, otherwise=0.7, initial=5, minimum=4, maximum=10)


# Batches stay smaller than the streams that they are drawn from, so that a step has no row twice.
RUNS: dict[str, dict[str, Any]] = {
    "adaptive": {
        "train_dataset": lambda: streams(b={"max_samples": 15}, c={"max_epochs": 1.5}),
        "mixing": lambda: LossChange(num_warmup_observations=1),
        "batch_size": growing(),
    },
    "groups": {
        "train_dataset": lambda: [
            Stream(name, Numbered(name, size), groups={"kind": "xyy"["abc".index(name)]}, shuffle=name != "b", seed=4)
            for name, size in SIZES.items()
        ],
        "groupings": [Grouping("kind", weights={"x": 1, "y": 1}, max_epochs={"y": 2})],
        "drawing": "multinomial",
        "ledger_interval_steps": 3,
    },
    "one": {
        "train_dataset": lambda: {"a": Numbered("a", 20)},
        "batch_size": 6,
        "dataloader_drop_last": True,
        "budget_samples": None,
    },
    "buffer": {
        "train_dataset": lambda: {
            "a": Numbered("a", 20, broken=[3, 7]),
            "b": Numbered("b", 11),
            "memory": ReplayBuffer(8),
        },
        "on_sample_error": "skip",
        "max_skipped_share": 0.5,
        "mixing": lambda: ReplayRatio(0.3, "Uniform"),
    },
    "by length": {
        "train_dataset": lambda: {"a": Uneven("a", 20), "c": Uneven("c", 6)},
        "train_sampling_strategy": "group_by_length",
    },
    "one by length": {
        "train_dataset": lambda: {"a": Uneven("a", 20)},
        "batch_size": 6,
        "train_sampling_strategy": "group_by_length",
        "budget_samples": None,
    },
    "rows": {
        "train_dataset": lambda: {"a": Numbered("a", 20), "c": InOrder(Numbered("c", 6))},
        "mixing": lambda: [1.0, 1.0],
        "max_steps": 6,
        "budget_samples": None,
    },
}


def build(folder: Path, name: str, recording: Recording, **changes: Any) -> MixingTrainer:
    sizes = {"batch_size": 5, "max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 3, "save_steps": 4}
    run = {**sizes, "budget_samples": 75, **RUNS[name], **changes}
    run |= {key: run[key]() for key in ("train_dataset", "mixing") if callable(run.get(key))}
    run |= {"save_strategy": "steps", "remove_unused_columns": False, "data_collator": recording.collate}
    return make(folder, callbacks=[recording], **run)


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step == 6


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Exposure, Seen]:
    """A run that was stopped at step 6 and resumed at step 4."""
    folder, recording = tmp_path_factory.mktemp("run"), Recording()
    trainer = build(folder, request.param, recording)
    trainer.add_callback(Stop())
    trainer.train()
    build(folder, request.param, recording).train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    lengths = {name: [row * 7 % 20 for row in range(size)] for name, size in SIZES.items()}
    return request.param, Exposure(folder, lengths if "by length" in request.param else None), recording.steps


def pairs(table: pd.DataFrame) -> set[tuple[str, int]]:
    return set(zip(table["stream"], table["row"].tolist(), strict=True))


def ends_of(name: str, steps: Seen) -> dict[int, int]:
    """The last step of the row of the ledger that covers each: a third one, a checkpoint, or the end of the run."""
    is_end = {one: name != "groups" or one % 3 == 0 or one % 4 == 0 or one == max(steps) for one in steps}
    return {step: next(one for one in range(step, max(steps) + 1) if is_end[one]) for step in steps}


def test_a_step_has_the_rows_that_the_collator_saw(run: tuple[str, Exposure, Seen]) -> None:
    name, exposure, steps = run
    if name == "rows":
        steps = {step: {one for one in seen if one[0] == "a"} for step, seen in steps.items()}
    assert max(steps) >= 6
    ends = ends_of(name, steps)
    for step in steps:
        expected = set().union(*(seen for one, seen in steps.items() if ends[one] == ends[step]))
        found = exposure.at(step)
        assert pairs(found[found["row"].notna()]) == expected


def test_a_row_was_trained_on_in_the_steps_in_which_the_collator_saw_it(run: tuple[str, Exposure, Seen]) -> None:
    name, exposure, steps = run
    for stream in exposure.streams:
        size = SIZES[stream]
        ends = ends_of(name, steps)
        expected = {(row, ends[step]) for step, seen in steps.items() for one, row in seen if one == stream}
        table = exposure.of(stream, range(size))
        if name == "groups":
            assert (table["step"] - table["first_step"]).max() == 2
        assert set(zip(table["row"].tolist(), table["step"].tolist(), strict=True)) == expected
        own = table[table["drawn_from"] == stream]
        assert own["pass"].tolist() == (own["position"] // size + 1).tolist()
        assert exposure.of(stream, [2]).values.tolist() == table[table["row"] == 2].values.tolist()
        never = [row for chunk in exposure.never(stream) for row in chunk.tolist()]
        assert never == sorted(set(range(size)) - {row for row, _ in expected})


def test_the_command_takes_the_only_stream_or_asks_for_one(
    run: tuple[str, Exposure, Seen], capsys: pytest.CaptureFixture[str]
) -> None:
    name, exposure, _ = run
    command, chosen = ["seen", str(exposure._folder), "--never", "--json"], ["--stream", "a"]
    if len(exposure.streams) > 1:
        with pytest.raises(SystemExit):
            main(command)
        assert "--stream" in capsys.readouterr().err
    if "by length" in name:  # the command does not know the lengths
        with pytest.raises(SystemExit):
            main(command + chosen)
        assert "Exposure(" in capsys.readouterr().err
        return
    main(command if len(exposure.streams) == 1 else command + chosen)
    never = [row for chunk in exposure.never("a") for row in chunk.tolist()]
    assert json.loads(capsys.readouterr().out) == {"stream": "a", "never": never}


def test_what_cannot_be_known_is_told(run: tuple[str, Exposure, Seen]) -> None:
    name, exposure, _ = run
    with refused("rows", stream="a"):
        exposure.of("a", [20])
    with refused("stream", found="z"):
        exposure.of("z", [0])
    if name == "rows":
        own = exposure.at(1).query("stream == 'c'")
        assert own["row"].isna().all()
        assert own["position"].tolist() == list(range(len(own)))
        with refused("stream", found="c"):
            next(exposure.never("c"))
