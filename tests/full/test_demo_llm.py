"""The demo on a real model: what its recipe makes of files, and the answers that it shows."""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples import before_and_after
from mixer.tools.cli.entry import main
from tests.commands.recipes import ROOT

pytestmark = [pytest.mark.full, pytest.mark.weights]
TOOL = {
    "type": "function",
    "function": {
        "name": "area",
        "description": "Gives an area.",
        "parameters": {"type": "object", "properties": {"base": {"type": "integer"}, "unit": {"type": "string"}}},
    },
}


def _call(number: int) -> dict[str, Any]:
    return {"name": "area", "arguments": {"base": number, "unit": "m"}}


def _messages(number: int) -> list[dict[str, Any]]:
    function = {**_call(number), "arguments": json.dumps(_call(number)["arguments"])}
    call = {"id": "call_0", "type": "function", "function": function}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [{"role": "user", "content": f"What is the area of {number}?"}, answer]


def _natural(number: int) -> dict[str, Any]:
    return {"id": str(number), "definition": "Answer.", "input": f"Say {number}.", "output": [f"It is {number}."]}


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "gsm8k_train.jsonl.gz": lambda n: {"question": f"What is {n} + 1?", "answer": f"{n} + 1\n#### {n + 1}"},
    "mbpp.jsonl.gz": lambda n: {
        "text": f"Add {n}.",
        "code": f"def add(x):\r\n    return x + {n}",
        "task_id": n,
        "test_list": [f"assert add({x}) == {x + n}" for x in range(3)],
    },
    "tool_calls.jsonl.gz": lambda n: {"id": str(n), "category": "a", "messages": _messages(n), "tools": [TOOL]},
    "task1290_xsum_summarization.jsonl.gz": _natural,
    "task1729_personachat_generate_next.jsonl.gz": _natural,
    "task024_cosmosqa_answer_generation.jsonl.gz": _natural,
    "seed_tasks.jsonl": lambda n: {
        "id": n,
        "instruction": f"Repeat {n}.",
        "instances": [{"input": "twice", "output": f"{n} {n}"}],
    },
    "user_instructions.jsonl": lambda n: {"instruction": f"Name {n}.", "instances": [{"input": "", "output": f"{n}"}]},
}


def _write(folder: Path) -> None:
    (folder / "instruct").mkdir(parents=True)
    for name, row in ROWS.items():
        text = "".join(json.dumps(row(number)) + "\n" for number in range(80))
        (folder / "instruct" / name).write_bytes(
            gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        )
    (folder / "clinc150").mkdir()
    requests = [[f"pay {number}", "pay_bill"] for number in range(20)]
    (folder / "clinc150" / "data_full.json").write_text(json.dumps({"train": requests, "val": requests[:2]}))
    (folder / "clinc150" / "domains.json").write_text(json.dumps({"banking": ["pay_bill"]}))
    (folder / "text").mkdir()
    for part in ("train", "dev"):
        (folder / "text" / f"stsa.binary.{part}").write_text(f"1 good {part}\n0 bad {part}\n")
    (folder / "lm").mkdir()
    (folder / "lm" / "wikitext2-valid.txt").write_text("some text\n" * 50)


def test_the_files_become_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "data")
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    recipe = before_and_after.read_recipe(ROOT / "recipes" / "smollm2_instruct.yaml")
    tokenizer, streams, _ = recipe.build_data()
    asked = {name: before_and_after.asked_in(own.evaluation, tokenizer, 1)[0] for name, own in streams.items()}
    prompts = {name: own.prompt.partition("user\n")[2].removesuffix("\nassistant") for name, own in asked.items()}
    number = int(asked["maths"].expected.partition(" ")[0])
    assert prompts["maths"] == f"What is {number} + 1?"
    assert asked["maths"].expected == f"{number} + 1\n#### {number + 1}"
    assert prompts["code"].splitlines()[1:] == [f"assert add({x}) == {x + _added(asked)}" for x in range(3)]
    assert asked["tools"].prompt.splitlines()[2] == "area(base: integer, unit: string) Gives an area."
    number = int(prompts["tools"].rpartition(" ")[2][:-1])
    assert json.loads(asked["tools"].expected) == _call(number)
    assert {asked[name].expected[:6] for name in ("summaries", "dialogue", "reading")} == {"It is "}
    assert asked["intents"].expected == "pay bill"
    assert asked["reviews"].expected in ("positive", "negative")


def _added(asked: dict[str, before_and_after.Asked]) -> int:
    return int(asked["code"].expected.rpartition(" ")[2])


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("def add(x):\r\n    return x + 2", True),
        ("```python\ndef add(x):\n    return x + 2\n```", True),
        ("def add(x):\n    return x + 3", False),
        ("def add(x)", False),
        ("raise SystemExit(0)", False),
    ],
)
def test_a_program_passes_if_it_reaches_the_end_of_its_assertions(program: str, passes: bool) -> None:
    asked = before_and_after.Asked("Add 2.\nassert add(1) == 3\nassert add(5) == 7", "", [], [])
    assert before_and_after.passes_tests([program], [asked]) == passes


def test_answers_are_shown_for_each_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--training.max_steps", "1", "--batch_size", "4", "--training.eval_strategy", "no"]
    words += ["--training.eval_on_start", "false", "--training.output_dir", str(tmp_path / "run")]
    main(["train", str(ROOT / "recipes" / "smollm2.yaml"), *words])
    monkeypatch.setattr(sys, "argv", ["before_and_after", str(tmp_path / "run"), "--num_prompts", "1"])
    before_and_after.main()
    printed = capsys.readouterr().out
    for name in ("docstrings", "examples", "characters", "error_codes"):
        assert name in printed
    assert printed.count("expected") == 4
