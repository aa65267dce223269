"""What is printed of log entries while a run trains, also of streams named by numbers or as on the hub."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PrinterCallback

from mixer import Mixture, Objective, Stream, policies
from mixer.ledger.progress.bar import MixturePrinter
from replay import ReplayBound, ReplayBuffer
from tests.helpers import On, Tokens, three_streams
from tests.mixer.trainer.runs import logged, make, train
from tests.refusals import refused

_TIMES = ("runtime", "per_second")


def _run(folder: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> tuple[str, list[dict[str, Any]]]:
    """What a run of six steps with an evaluation after three prints, and what it keeps, without times."""
    options = {"eval_strategy": "steps", "eval_steps": 3, "eval_dataset": three_streams(), "objective": "worst"}
    trainer = train(folder, max_steps=6, **options | changes)
    history = [
        {key: value for key, value in entry.items() if not key.endswith(_TIMES)} for entry in trainer.state.log_history
    ]
    return capsys.readouterr().out, history


def test_a_run_prints_lines_and_tables_and_keeps_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, kept = _run(tmp_path / "line", capsys)
    dicts, kept_by_dicts = _run(tmp_path / "dict", capsys, logging_style="dict")
    assert kept == kept_by_dicts
    assert dicts.count("{'loss': '") == 6
    steps = [line for line in lines.splitlines() if "  lr " in line]
    assert len(steps) == 6
    assert steps[0].startswith("step 1/6  loss 4.")
    assert re.fullmatch(
        r"step 6/6  loss [\d.]+  objective [\d.]+  lr 1.67e-02  [\d,.]+ samples/s  00:00 left", steps[5]
    )
    last = next(entry for entry in reversed(kept) if "eval_objective" in entry)["eval_objective"]
    assert "step 6/6  evaluation: loss " in lines
    assert f"objective {last:.3f}" in lines
    table = re.findall(r"(?m)^  (\w)\s+(\d+)%  [\d.]+\s+(\d+)\s+[\d.]+$", lines)
    assert [row[0] for row in table] == [*"abc", *"abc"]
    assert sum(int(row[2]) for row in table[3:]) == 5 * 8 + 5  # the last batch of an epoch is smaller


def test_with_one_data_set_too_callbacks_get_what_they_get_with_the_trainers_style(tmp_path, capsys) -> None:
    kept: dict[str, list[list[str]]] = {"line": [], "dict": []}
    for style, names in kept.items():
        trainer = make(tmp_path / style, train_dataset=Tokens(20, 1), logging_style=style)
        trainer.add_callback(On(log=lambda _, logs, names=names, **__: names.append(sorted(logs))))
        trainer.train()
        printed = capsys.readouterr().out.splitlines()
        if style == "line":
            assert [line.startswith("step ") for line in printed] == [True, True, True, False]
            assert printed[-1].startswith("trained on 20 samples in ")
            trainer.remove_callback(PrinterCallback)  # ours too
            assert not any(isinstance(one, MixturePrinter) for one in trainer.callback_handler.callbacks)
    assert kept["line"] == kept["dict"]


SETS: dict[Any, Any] = {"org/a": Tokens(6, 1), 7: Tokens(6, 2), "naïve b": Tokens(6, 3)}
BY_NAME: dict[Any, float] = {7: 2, "org/a": 1, "naïve b": 1}


def test_options_by_name_take_the_given_names_and_logs_have_the_safe_ones(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 3, "eval_weights": BY_NAME, "objective": ["org/a", 7]}
    trainer = train(tmp_path, train_dataset=SETS, mixing=BY_NAME, eval_dataset=SETS, save_best_of_each=True, **options)
    assert trainer.mixing.weights == {"org--a": 0.25, "7": 0.5, "naïve b": 0.25}
    assert all(logged(trainer, key) for key in ("loss/org--a", "eval_org--a_loss", "eval_7_loss"))
    assert set(trainer.ledger.to_pandas()["stream"]) == {"org--a", "7", "naïve b"}
    trainer.mixing.set_weights({"org/a": 1, "7": 1, "naïve b": 2})
    assert trainer.mixing.weights["org--a"] == 0.25


@pytest.mark.parametrize(
    "policy",
    [
        policies.TargetLoss({"a/x": 1.0, "b": 2.0}),
        policies.RegularizedBalance(targets=["a/x"]),
        policies.SkillIt(graph={"a/x": {"b": 0.5, "a/x": 1.0}}),
        policies.Scheduled([(0.0, {"a/x": 1, "b": 3}), (1.0, {"a/x": 3, "b": 1})]),
        ReplayBound(old=["a/x"]),
    ],
)
def test_options_of_policies_take_the_given_names(policy: Any) -> None:
    policy.start(Mixture(("a--x", "b"), np.array([50, 50]), np.array([0.5, 0.5])))


def test_other_options_and_calls_take_the_given_names(tmp_path: Path) -> None:
    objective = Objective({"a/x": 2.0}, bounds={"a/x": 1.5})
    assert (objective.names, [*objective.of_sets(["a--x"]).bounds]) == (("a--x",), ["a--x"])
    assert ReplayBuffer(4, streams=["a/x"]).stream_names == ("a--x",)
    own = {"a/x": Stream("a/x", Tokens(6, 1), label_names=["labels"]), "b": Tokens(6, 3)}
    trainer = make(tmp_path, train_dataset=own, eval_dataset={"a/x": Tokens(4, 5)})
    assert "eval_a--x_loss" in trainer.evaluate({"a/x": Tokens(4, 5)})
    assert trainer.evaluate("a/x").keys() == trainer.evaluate("a--x").keys()
    (name, output), *_ = trainer.predict({"a/x": Tokens(4, 5)}).items()
    assert (name, "test_a--x_loss" in output.metrics) == ("a/x", True)


@pytest.mark.parametrize("names", [("a/b", "a--b"), (1, "1")])
@pytest.mark.parametrize("option", ["train_dataset", "eval_dataset"])
def test_names_of_one_safe_form_are_refused(tmp_path: Path, names: tuple[Any, Any], option: str) -> None:
    with refused(option):
        make(tmp_path, **{option: dict.fromkeys(names, Tokens(4, 1))})
