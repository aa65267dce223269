"""What is simulated is what is trained: each figure of the ledger that can be planned, to the last digit."""

from pathlib import Path
from typing import Any

import pytest

import mixer
from mixer import Budget, Grouping, schedules
from mixer.tools.recipe.streams import StreamRecipe
from replay import ReplayRatio
from tests.mixer.tools.analysis.simulate.ranked import CASES
from tests.mixer.tools.analysis.simulate.runs import HERE, assert_same, plan, stream, three, train

SCHEDULED = [(0.0, {"a": 3, "b": 1, "c": 1}), (1.0, {"a": 1, "b": 1, "c": 3})]


def memory(enters_at: float = 0.0, **arguments: Any) -> StreamRecipe:
    return StreamRecipe("replay.ReplayBuffer", {"capacity": 10, **arguments}, enters_at=enters_at)


QUICK: dict[str, dict[str, Any]] = {
    "shares by size, two epochs": {},
    "one stream, the rest dropped": {
        "streams": {"a": stream(37, 1)},
        "training": {"dataloader_drop_last": True},
        "batch_size": lambda: schedules.Ramp(13, 1.0, initial=8, unit="progress"),
    },
    "streams that come and go, scheduled": {
        "streams": three(b={"enters_at": 0.3}, c={"leaves_at": 0.6}),
        "mixing": lambda: mixer.Scheduled(SCHEDULED),
    },
    "groups with caps, counts at random": {
        "streams": three(a={"groups": {"k": "x"}}, b={"groups": {"k": "y"}}, c={"groups": {"k": "y"}}),
        "groupings": [Grouping("k", max_shares={"x": 0.4}, max_epochs={"y": 1.5})],
        "drawing": "multinomial",
    },
    "a budget of tokens, shares of tokens, batches that grow with tokens": {
        "mixing": lambda: mixer.Fixed({"a": 1, "b": 2, "c": 1}, unit="tokens"),
        "budget": Budget(tokens=1500),
        "batch_size": lambda: schedules.Ramp(20, initial=6, over=900, unit="tokens", learning_rate="sqrt"),
    },
    "a budget of labels, shares of labels": {
        "mixing": lambda: mixer.Fixed({"a": 1, "b": 2, "c": 1}, unit="labels"),
        "budget": Budget(labels=900),
    },
    "a table without masks": {
        "streams": {"a": StreamRecipe(f"{HERE}.columns", {"num_samples": 30}), "b": stream(12, 2)},
        "budget": Budget(tokens=600),
        "training": {"per_device_train_batch_size": 4},
    },
    "replay": {
        "streams": {**three(a={"leaves_at": 0.5}, b={"enters_at": 0.5}), "memory": memory(0.5, streams=["a"])},
        "mixing": lambda: ReplayRatio(0.3, "Uniform"),
    },
}
SLOW: dict[str, dict[str, Any]] = {
    "accumulation": {"training": {"dataloader_drop_last": True, "gradient_accumulation_steps": 2}},
    "all streams exhausted": {
        "streams": three(a={"max_epochs": 1.0}, b={"max_epochs": 0.7}, c={"max_epochs": 1.5}),
        "training": {"max_steps": 60},
    },
    "warm-up of the batch size, a budget of samples, epochs of its own": {
        "budget": Budget(samples=150),
        "epoch_size": 50,
        "batch_size": lambda: schedules.AdaBatch(every=50, unit="samples", learning_rate="linear"),
        "training": {"warmup_steps": 3, "lr_scheduler_type": "linear"},
    },
    "by the learning rate": {"batch_size": lambda: schedules.Seesaw(maximum=32), "training": {"num_train_epochs": 4}},
    "replay of contents, chosen by losses": {
        "streams": {"a": stream(30, 1), "memory": memory(storage="memory", selection="LossAware")},
        "mixing": lambda: ReplayRatio(0.4),
    },
    "rows of which nobody knows how many there are": CASES["rows"],
}


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(one, marks=pytest.mark.full) for one in SLOW)])
def test_it_is_the_trained_run(tmp_path: Path, case: str) -> None:
    fields = {**QUICK, **SLOW}[case]
    trainer = train(tmp_path / "run", **fields)
    found = plan(tmp_path / "other", **fields)
    estimated = case == "replay of contents, chosen by losses"  # which entries are drawn, and how long they are
    assert_same(tmp_path / "run", found, but=("tokens",) if estimated else ())
    clock = trainer.mixing.clock
    assert (found.steps, found.samples, found.progress) == (clock.step, clock.num_samples, clock.progress)
    assert found.tokens == clock.num_tokens or estimated
    assert found.labels == (clock.num_labels if "labels" in case else 0)  # collated where they count
    assert list(found.estimated_tokens) == {"replay of c": ["memory"], "rows of whi": ["rows"]}.get(case[:11], [])
