"""The script of the published extension for batch sizes that change, and what its four configurations show."""

import itertools
import json
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from transformers import BertConfig, BertForSequenceClassification

from tests.seq2seq import tokenizer

SCRIPT = Path(__file__).parent / "commands" / "scripts" / "adaptive_batch_size.py"

# Rows of a rank's forwards in each of ten epochs over ten samples, by ranks and `dataloader_drop_last`, by hand: the
# size is one more after every fifth step, and a rest smaller than it comes as it is, or is dropped.
EPOCHS = {
    (1, False): [
        *[[1, 1, 1, 1, 1, 2, 2, 1], [2, 2, 3, 3], [3, 3, 3, 1], [4, 4, 2], [4, 5, 1]],
        *[[5, 5], [5, 5], [6, 4], [6, 4], [7, 3]],
    ],
    (1, True): [[1, 1, 1, 1, 1, 2, 2], [2, 2, 2, 3], [3, 3, 3], [3, 4], [4, 4], [4, 4], [5, 5], [5, 5], [5], [6]],
    (2, False): [[1] * 5, [2, 2, 1], [2, 2, 1], [3, 2], [3, 2], [4, 1], [4, 1], [4, 1], [5], [5]],
    (2, True): [[1] * 5, [2, 2], [2, 2], [2, 3], [3], [3], [3], [3], [4], [4]],
}


def lines_of(num_ranks: int, drop_last: bool) -> list[list[float]]:
    """Gives what is to be logged: step, coverage (twice), epoch, samples seen, samples there are."""
    lines: list[list[float]] = []
    seen = 0
    for epoch in EPOCHS[num_ranks, drop_last]:
        for of_epoch in itertools.accumulate(epoch):
            now = seen + num_ranks * of_epoch
            coverage = num_ranks * of_epoch / 10
            lines.append([len(lines) + 1, coverage, coverage, now / 10, now, 10])
        seen += num_ranks * sum(epoch)
    return lines


def write_model(folder: Path) -> None:
    """Writes a tiny BERT and its tokenizer."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer()), pad_token_id=0, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def run_script(model: Path, output: Path, drop_last: bool, *options: str, rank: int = 0) -> dict[str, Any]:
    """Runs the script in this process; gives what it showed on this rank."""
    words = [
        *["--model_name_or_path", str(model), "--output_dir", str(output), "--logging_steps", "1"],
        *["--save_strategy", "no", "--num_train_epochs", "10", "--per_device_train_batch_size", "1"],
        *["--max_steps", "-1", "--dataloader_drop_last", str(drop_last)],
        *["--use_cpu", "True", "--report_to", "none", "--disable_tqdm", "True", *options],
    ]
    with mock.patch.object(sys, "argv", [str(SCRIPT), *words]):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    shown: dict[str, Any] = json.loads((output / f"shown-{rank}.json").read_text())
    return shown
