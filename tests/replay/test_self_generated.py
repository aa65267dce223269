"""Rows that a model writes itself: what they are, what they leave as it was, and a recipe that trains on them."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from mixer import Ledger
from mixer.tools.cli.entry import main
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import RandomState
from replay import self_generated
from replay.generation.sampling import Sampling
from replay.generation.self_generated import _Start, _Writer, read_prompts
from tests.helpers import weights_of
from tests.mixer.tools.recipe.small_tokenizers import byte_level
from tests.refusals import refused

TOKENIZER = byte_level()


@cache
def llama() -> Any:
    """A model that ends a text soon: half of its tokens end one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, vocab_size=len(TOKENIZER), num_key_value_heads=2, max_position_embeddings=256)
    model = LlamaForCausalLM(config)
    model.config.pad_token_id = TOKENIZER.pad_token_id
    model.generation_config.eos_token_id = [2, *range(150, len(TOKENIZER))]
    return model


def written(**options: Any) -> list[dict[str, str]]:
    return list(self_generated(llama(), TOKENIZER, **{"num_rows": 6, "max_new_tokens": 24, "min_tokens": 1, **options}))


def test_rows_are_decided_by_the_seed_and_nothing_of_the_model_changes() -> None:
    llama().train()
    before, weights = RandomState.capture(), weights_of(llama()).clone()
    rows = written(prompts=["one", "two", "three"], batch_size=4)
    assert before.is_current()
    assert llama().training
    assert torch.equal(weights_of(llama()), weights)
    torch.manual_seed(5)
    assert written(prompts=["one", "two", "three"], batch_size=4) == rows != written(prompts=["one"], seed=1)
    assert [set(row) for row in rows] == [{"prompt", "completion"}] * 6
    assert {row["prompt"] for row in rows} <= {"one", "two", "three"}
    assert len({tuple(row.values()) for row in rows}) == 6


def test_the_likeliest_tokens_are_those_of_greedy_generation() -> None:
    options = {"num_rows": 2, "top_k": 1, "as_chat": False, "max_new_tokens": 5}
    rows = written(prompts=["ab", "abcd"], **options)
    for row, start in zip(rows, ("ab", "abcd"), strict=True):
        ids = TOKENIZER(start, return_tensors="pt")["input_ids"]
        found = llama().generate(ids, do_sample=False, max_new_tokens=5, pad_token_id=TOKENIZER.pad_token_id)
        assert row == {"text": TOKENIZER.decode(found[0], skip_special_tokens=True).strip()}


def test_penalties_of_the_models_own_generation_do_not_change_what_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = written(prompts=["one", "two"])
    for name, value in {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1, "min_p": 0.9, "typical_p": 0.1}.items():
        monkeypatch.setattr(llama().generation_config, name, value)
    assert written(prompts=["one", "two"]) == rows


def test_without_prompts_a_text_begins_with_the_first_token_and_a_chat_with_a_question_of_its_own() -> None:
    assert all(set(row) == {"text"} for row in written(as_chat=False))
    rows = written(max_new_tokens=48)
    assert all(row["prompt"] for row in rows)


def test_rows_are_left_out_by_their_perplexity_which_is_that_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = _Writer(llama(), TOKENIZER, [_Start("", "")], Sampling(), 1, 9.0, 0)
    read, new = [5, 6, 7], [8, 9, 10, 11]
    labels = torch.tensor([[-100] * 3 + new])
    loss = llama().eval()(torch.tensor([read + new]), labels=labels).loss
    assert writer._perplexity(read, new) == pytest.approx(float(loss.detach().exp()), rel=1e-5)
    seen: dict[int, list[int]] = {}
    monkeypatch.setattr(_Writer, "_perplexity", lambda self, read, new: seen.setdefault(len(new), new) and len(new))
    assert len(written(prompts=["one", "two"], as_chat=False, max_perplexity=4.0)) == 6
    assert max(seen) > 4
    kept = {TOKENIZER.decode(new, skip_special_tokens=True).strip() for number, new in seen.items() if number > 4}
    rows = written(prompts=["one", "two"], as_chat=False, max_perplexity=4.0)
    assert not kept & {row["text"][3:].strip() for row in rows}


def test_filters_that_leave_too_few_rows_end_in_an_error() -> None:
    with refused("num_rows", found=3):
        written(prompts=["one"], top_k=1, as_chat=False, num_rows=3)


def test_prompts_are_read_from_files(tmp_path: Path) -> None:
    rows = [{"q": "Name a tree.", "parts": [{"of": "oak"}]}, {"q": "Name a tree.", "parts": [{"of": "oak"}]}]
    content = "\n".join(map(json.dumps, [*rows, {"q": "Add.", "parts": [{"of": ""}]}]))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "lines.txt").write_text("one\n\n two \n")
    template = "{q}\n{parts[0][of]}"
    assert read_prompts(str(tmp_path / "rows.jsonl.gz"), template) == ["Name a tree.\noak", "Add."]
    assert read_prompts(str(tmp_path / "lines.txt"), "") == ["one", "two"]
    with pytest.raises(InvalidValueError, match="line 1"):
        read_prompts(str(tmp_path / "rows.jsonl.gz"), "{other}")
    with refused("prompts"):
        read_prompts([], "")


def test_what_does_not_write_or_is_out_of_range_is_refused() -> None:
    with refused("model"):
        self_generated(nn.Linear(2, 2), TOKENIZER)
    for option, value in (("num_rows", 0), ("temperature", 0.0), ("top_p", 2.0), ("max_perplexity", 0.5)):
        with pytest.raises(ValueError, match=option):
            written(**{option: value})


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
