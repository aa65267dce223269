"""Amounts in tokens and labels: what shares, budgets and limits count, and where a run shows it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from mixer import Budget, Fixed, MixingTrainer, Policy, Stream, schedules
from mixer.tools.analysis.explanation import explain
from mixer.tools.analysis.fit.runs import FittedRun
from mixer.tools.records.comparison import comparison
from mixer.tools.records.run import Run
from mixer.tools.report.contents import read_report
from mixer.tools.report.tables import stream_figures
from tests.helpers import shown
from tests.mixer.trainer.runs import folder_of, make, padded, train
from tests.mixer.trainer.trl.cases import chats, completions, sft
from tests.refusals import refused

WEIGHTS = {"long": 0.75, "short": 0.25}
ASKED = pytest.approx(WEIGHTS, abs=0.02)


class Answers(Dataset[dict[str, torch.Tensor]]):
    """Prompts that are not learned, with answers that are; the first token names the stream."""

    def __init__(self, name: str, prompt: int, answers: tuple[int, ...]):
        self.first, self.prompt, self.answers = list(WEIGHTS).index(name) + 1, prompt, answers

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.full((self.prompt + self.answers[index % len(self.answers)],), index % 50 + 3)
        ids[0] = self.first
        labels = torch.where(torch.arange(len(ids)) < self.prompt, -100, ids)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class Recording:
    """Pads rows and counts what a model that predicts the next token learns of each stream: no label of a first one.

    The first step is left out.
    """

    trainer: MixingTrainer | None = None

    def __init__(self) -> None:
        self.labels = dict.fromkeys(WEIGHTS, 0)

    def __call__(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        for row in rows:
            name = list(WEIGHTS)[int(row["input_ids"][0]) - 1]
            if self.trainer is not None and self.trainer.state.global_step:
                self.labels[name] += sum(label != -100 for label in row["labels"].tolist()[1:])
        return padded(rows)


def streams(**limits: int) -> list[Stream]:
    # A prompt of no token: the first label of a row is no term of the loss.
    data = {"long": Answers("long", 20, (2, 4)), "short": Answers("short", 0, (5, 9))}
    return [Stream(name, dataset, max_labels=limits.get(name)) for name, dataset in data.items()]


def made(folder: Path, data: Any = None, **options: Any) -> MixingTrainer:
    defaults = {"max_steps": 40, "logging_steps": 20, "per_device_train_batch_size": 10}
    collator = Recording()
    own = {"data_collator": collator, "train_dataset": data or streams(), **defaults, **options}
    collator.trainer = make(folder, **own)
    return collator.trainer


def counted(trainer: MixingTrainer) -> dict[str, int]:
    """The labels of each stream after the first step, by the ledger."""
    rows = trainer.ledger.to_pandas().query("step > 1")
    return {str(name): int(number) for name, number in rows.groupby("stream")["labels"].sum().items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MixingTrainer:
    folder = tmp_path_factory.mktemp("runs") / "labels"
    trainer = made(folder, mixing=Fixed(WEIGHTS, unit="labels"), save_strategy="steps", save_steps=25)
    trainer.train()
    return trainer


def test_shares_of_labels_are_those_that_the_collator_counts(run: MixingTrainer) -> None:
    recorded: Any = run.data_collator
    assert counted(run) == recorded.labels
    total = sum(recorded.labels.values())
    assert {name: number / total for name, number in recorded.labels.items()} == ASKED
    rows = run.ledger.to_pandas()
    assert rows["labels"].tolist() == rows["items"].tolist()  # the terms of this loss
    assert run.ledger.clock()["labels"].diff().iloc[1:].sum() == total
    assert run.mixing.clock.num_labels == rows["labels"].sum() == run.mixing.num_labels.sum()
    entries = [one for one in run.state.log_history if "loss" in one]
    late = rows.query("step > 20").groupby("stream")["labels"].sum()
    assert {name: entries[-1][f"labels/{name}"] for name in WEIGHTS} == late.to_dict()
    assert {name: entries[-1][f"weight/{name}"] for name in WEIGHTS} == pytest.approx(WEIGHTS)


def test_a_resumed_run_counts_on_to_the_bit(run: MixingTrainer, tmp_path: Path) -> None:
    resumed = made(tmp_path / "labels", mixing=Fixed(WEIGHTS, unit="labels"))
    resumed.train(resume_from_checkpoint=str(folder_of(run) / "checkpoint-25"))
    assert resumed.mixing.state_dict() == run.mixing.state_dict()
    rows = run.ledger.to_pandas().query("step > 25").reset_index(drop=True)
    assert resumed.ledger.to_pandas().query("step > 25").reset_index(drop=True).equals(rows)


def test_a_report_an_explanation_and_a_fit_go_by_labels(run: MixingTrainer) -> None:
    folder = folder_of(run)
    assert Run(folder).figures["label_share"].to_dict() == ASKED
    (recorded,) = read_report([folder]).runs
    assert stream_figures(recorded).set_index("stream")["label_share"].to_dict() == ASKED
    labels, seen = (run.ledger.to_pandas().query("step < 30").groupby("stream")[name] for name in ("labels", "count"))
    found = explain(folder, 30).weights["labels_per_sample"].to_dict()
    assert found == pytest.approx((labels.sum() / seen.sum()).to_dict())
    assert FittedRun(folder, folder.name, "labels").amounts.tolist() == run.mixing.num_labels.tolist()


def test_a_budget_and_a_schedule_in_labels_count_them(tmp_path: Path) -> None:
    ramp = schedules.Ramp(16, over=400, initial=4, unit="labels")
    trainer = made(tmp_path, mixing="Uniform", budget=Budget(labels=700), batch_size=ramp, max_steps=-1)
    trainer.train()
    recorded: Any = trainer.data_collator
    clock = trainer.ledger.clock()
    assert clock["labels"].iloc[-2] < 700 <= clock["labels"].iloc[-1]
    assert clock["labels"].iloc[-1] - clock["labels"].iloc[0] == sum(recorded.labels.values())
    before = [0, *clock["labels"].tolist()[:-1]]
    assert clock["batch_size"].tolist() == [round(4 + 12 * min(done / 400, 1)) for done in before]


def test_amounts_of_labels_are_the_length_and_the_mixture_of_a_run(tmp_path: Path) -> None:
    trainer = made(tmp_path, streams(long=300, short=600), max_steps=-1)
    trainer.train()
    assert trainer.mixing.num_labels.tolist() == pytest.approx([300, 600], abs=9)
    assert trainer.mixing.policy.unit == "labels"


def test_a_stream_without_labels_is_told_of_and_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = [*streams()[1:], Stream("none", Answers("long", 20, (0,)))]
    trainer = made(tmp_path, data, mixing=Fixed({"short": 1, "none": 1}, unit="labels"))
    with refused("unit='labels'"):
        trainer.train()
    assert [text for text in caplog.messages if "['none']" in text]
    assert 1 <= trainer.state.global_step < 10


def test_what_has_no_labels_at_all_is_refused_before_a_step(tmp_path: Path) -> None:
    def without(rows: list[Any]) -> dict[str, Any]:
        return {name: value for name, value in Recording()(rows).items() if name != "labels"}

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return outputs.logits.square().mean()

    trainer = made(tmp_path, data_collator=without, budget=Budget(labels=10), compute_loss_func=loss, max_steps=2)
    with refused("A budget in labels"):
        trainer.train()


@pytest.mark.parametrize("packing", [True, False])
def test_trl_counts_what_its_collator_leaves_to_learn(tmp_path: Path, packing: bool) -> None:
    data = {"a": chats(40, 1), "b": chats(9, 2) if packing else completions(40, 2)}
    own = {"mixing": Fixed(dict.fromkeys(data, 0.5), unit="labels"), "batch_size": 4}
    changes = {"packing": True, "assistant_only_loss": True, "max_length": 24} if packing else {}
    trainer = sft(tmp_path, data, own=own, max_steps=12, per_device_train_batch_size=1, **changes)
    collate, recorded = trainer.data_collator, []

    def recording(rows: Any) -> Any:
        batch = collate(rows)
        if trainer.state.global_step:
            recorded.append(int((batch["labels"][:, 1:] != -100).sum()))
        return batch

    trainer.data_collator = recording
    trainer.train()
    assert sum(counted(trainer).values()) == sum(recorded) > 0
    assert (trainer.mixing.num_labels / trainer.mixing.num_labels.sum()).tolist() == pytest.approx([0.5, 0.5], abs=0.1)


LENGTHS, TOKEN_WEIGHTS = {"a": 12, "b": 6, "c": 3}, {"a": 60, "b": 30, "c": 10}
ASKED_TOKENS = pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.02)


def _rows(length: int) -> list[dict[str, torch.Tensor]]:
    tokens = [torch.full((length,), index % 60 + 1) for index in range(400)]
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids} for ids in tokens]


def _train(folder: Path, policy: Policy) -> MixingTrainer:
    data = {name: _rows(length) for name, length in LENGTHS.items()}
    options = {"max_steps": 40, "logging_steps": 20, "per_device_train_batch_size": 10}
    return train(folder, data_collator=padded, train_dataset=data, mixing=policy, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MixingTrainer]:
    folder = tmp_path_factory.mktemp("runs")
    return {unit: _train(folder / unit, Fixed(TOKEN_WEIGHTS, unit=unit)) for unit in ("tokens", "samples")}  # type: ignore[arg-type]


def _by_hand(trainer: MixingTrainer) -> dict[str, float]:
    """Shares of the tokens by the samples of each stream and the lengths of its rows."""
    tokens = {name: int(seen) * LENGTHS[name] for name, seen in zip(LENGTHS, trainer.mixing.seen, strict=True)}
    return {name: number / sum(tokens.values()) for name, number in tokens.items()}


def test_a_log_entry_has_the_asked_share_and_the_tokens(runs: dict[str, MixingTrainer]) -> None:
    entry = [one for one in runs["tokens"].state.log_history if "loss" in one][-1]
    assert {name: entry[f"weight/{name}"] for name in LENGTHS} == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1})
    assert {name: entry[f"tokens/{name}"] for name in LENGTHS} == {
        name: entry[f"count/{name}"] * length for name, length in LENGTHS.items()
    }
    assert not [key for one in runs["samples"].state.log_history for key in one if key.startswith("tokens/")]


def test_a_summary_has_shares_of_tokens_and_runs_that_differ_are_told(runs) -> None:
    by_tokens, by_samples = (Run(folder_of(runs[unit])) for unit in ("tokens", "samples"))
    assert by_tokens.figures["token_share"].to_dict() == pytest.approx(_by_hand(runs["tokens"]))
    assert by_samples.figures["token_share"].to_dict() == pytest.approx(_by_hand(runs["samples"]))
    assert by_tokens.figures["token_share"].to_dict() == ASKED_TOKENS
    assert by_tokens.figures["weight"].to_dict() == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1})
    text = shown(comparison([by_tokens, by_samples]), width=160)
    assert "tokens: Fixed (tokens), samples: Fixed" in text
    assert "training lengths differ" in text
    assert "training lengths differ" not in shown(comparison([by_tokens, by_tokens]), width=160)


def test_a_report_and_an_explanation_name_the_unit(runs: dict[str, MixingTrainer]) -> None:
    report = read_report([folder_of(trainer) for trainer in runs.values()])
    assert dict(report.summary)["Policy"] == ["Fixed (tokens)", "Fixed"]
    figures = stream_figures(next(one for one in report.runs if one.name == "tokens")).set_index("stream")
    assert figures["token_share"].to_dict() == pytest.approx(_by_hand(runs["tokens"]))
    for column in ("first_weight", "last_weight"):
        assert figures[column].to_dict() == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1})
    shares = report.answer.differences.query("measure == 'share of tokens' and run == 'tokens'")
    assert dict(zip(shares["stream"], shares["value"], strict=True)) == pytest.approx(_by_hand(runs["tokens"]))
    assert [text for text in report.answer.sentences if "training lengths differ" in text and "tokens in" in text]
    assert explain(folder_of(runs["tokens"]), 30).policy == "Fixed (tokens)"
