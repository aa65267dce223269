"""A mixture by tokens shows shares of tokens, beside samples, wherever a run is looked at."""

from pathlib import Path

import pytest
import torch

from mixer import Fixed, MixingTrainer, Policy
from mixer.tools.analysis.explanation import explain
from mixer.tools.records.comparison import comparison
from mixer.tools.records.run import Run
from mixer.tools.report.contents import read_report
from mixer.tools.report.tables import stream_figures
from tests.helpers import shown
from tests.mixer.trainer.runs import folder_of, padded, train

LENGTHS, WEIGHTS = {"a": 12, "b": 6, "c": 3}, {"a": 60, "b": 30, "c": 10}
ASKED = pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.02)


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
    return {unit: _train(folder / unit, Fixed(WEIGHTS, unit=unit)) for unit in ("tokens", "samples")}  # type: ignore[arg-type]


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
    assert by_tokens.figures["token_share"].to_dict() == ASKED
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
