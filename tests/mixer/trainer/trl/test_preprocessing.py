"""A stream's preprocessing comes before what the trainer prepares, for training and evaluation alike."""

from pathlib import Path
from typing import Any

import datasets

from mixer import MixingSFTTrainer, Stream
from tests.mixer.trainer.trl.cases import model_of, sft_arguments, tokenizer


def _question(row: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": row["question"] + " ", "completion": row["answer"]}


def test_rows_are_preprocessed_and_then_prepared(tmp_path: Path) -> None:
    rows = [{"question": "one and one", "answer": "two"}, {"question": "two and one", "answer": "three"}] * 4
    raw = datasets.Dataset.from_list(rows)
    ready = raw.map(_question, remove_columns=raw.column_names)

    def train(name: str, stream: Stream, evaluation: datasets.Dataset) -> MixingSFTTrainer:
        trainer = MixingSFTTrainer(
            model_of(),
            sft_arguments(tmp_path / name, max_steps=2),
            train_dataset=[stream],
            eval_dataset={"sums": evaluation},
            processing_class=tokenizer(),
        )
        trainer.train()
        return trainer

    ours = train("raw", Stream("sums", raw, preprocess=_question), raw)
    expected = train("ready", Stream("sums", ready), ready)
    losses = [trainer.ledger.to_pandas()["loss"].tolist() for trainer in (ours, expected)]
    assert losses[0] == losses[1]
    assert ours.evaluate()["eval_sums_loss"] == expected.evaluate()["eval_sums_loss"]
