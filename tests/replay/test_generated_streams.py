"""A recipe whose model writes the rows of a stream before it is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mixer import Ledger
from mixer.tools.cli.entry import main
from tests.mixer.tools.recipe.small_tokenizers import byte_level

MODEL = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 260}
MODEL |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 3}
MODEL |= {"eos_token_id": [2, *range(150, 260)]}


def recipe(folder: Path, **changes: Any) -> str:
    byte_level().save_pretrained(folder / "tokenizer")
    rows = [json.dumps({"q": f"What is {number}?", "a": "A number."}) for number in range(12)]
    (folder / "new.jsonl").write_text("\n".join(rows))
    chat = {"class_path": "Prompt", "init_args": {"prompt": "{q}", "completion": "{a}", "as_chat": True}}
    own_chat = {**chat, "init_args": {"prompt": "{prompt}", "completion": "{completion}", "as_chat": True}}
    arguments = {"num_rows": 8, "prompts": ["one", "two"], "max_new_tokens": 12, "min_tokens": 1}
    generated = {"factory": "replay.self_generated", "arguments": arguments}
    content = {
        "model": {"config": MODEL},
        "tokenizer": str(folder / "tokenizer"),
        "streams": {
            "new": {"data": {"path": str(folder / "new.jsonl")}, "format": chat, "validation": 2},
            "own": {"generated": generated, "format": own_chat, "validation": 2, **changes},
        },
        "mixing": {"class_path": "replay.ReplayBound", "init_args": {"old": ["own"], "first_ratio": 0.5}},
        "methods": [{"class_path": "replay.ReferenceKL", "init_args": {"streams": ["own"]}}],
        "training": {
            "output_dir": str(folder / "run"),
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "use_cpu": True,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "eval_on_start": True,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
        },
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return str(folder / "recipe.yaml")


def test_rows_are_written_before_the_run_once_and_are_a_stream_like_any_other(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    main(["train", path])
    (file,) = (tmp_path / "run" / "generated").iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 8
    counts = Ledger(tmp_path / "run/ledger").to_pandas().groupby("stream")["count"].sum()
    assert counts["own"] > 0 < counts["new"]
    evaluated = Ledger(tmp_path / "run/ledger").evaluations()
    assert set(evaluated["stream"]) == {"new", "own"}
    written = file.stat().st_mtime_ns
    main(["train", path, "--overwrite"])
    assert file.stat().st_mtime_ns == written
    again = Ledger(tmp_path / "run/ledger").evaluations()
    assert (
        again["loss"].tolist() == evaluated["loss"].tolist()
    )  # the same first weights, whether rows were written or not


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("streams.own.data", {"data": {"path": "new.jsonl"}}),
        ("num_rows", {"generated": {"factory": "replay.self_generated", "arguments": {"num_rows": 0}}}),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, changes: Any
) -> None:
    with pytest.raises(SystemExit):
        main(["train", recipe(tmp_path, **changes)])
    assert field in capsys.readouterr().err
