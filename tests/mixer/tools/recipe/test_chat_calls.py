"""Calls and tools in JSON, as OpenAI writes them; what is said in a row is read, left unread by name, or refused."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from mixer.tools.recipe.data import Chat, DataSource, Dialogue, formatted
from mixer.tools.recipe.data.validation import Validation
from mixer.tools.recipe.streams import StreamRecipe
from tests.mixer.tools.recipe.small_tokenizers import CHATML, byte_level
from tests.mixer.tools.recipe.test_chat import (
    ASK,
    CALL,
    CALLED,
    LLAMA3,
    QWEN3,
    TALK,
    TOOLS,
    WEATHER,
    function,
    learned,
    made,
    rendered,
)
from tests.refusals import refused

QWEN = (
    "{%- if tools %}{{- '<|im_start|>system\n<tools>' }}{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}"
    "{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- endif %}{%- for message in messages %}"
    "{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) }}{%- if message.content %}"
    "{{- '\n' + message.content }}{%- endif %}{%- for tool_call in message.tool_calls or [] %}"
    "{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}"
    '{{- \'\n<tool_call>\n{"name": "\' }}{{- tool_call.name }}{{- \'", "arguments": \' }}'
    "{{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
LLAMA = (
    "{{- bos_token }}{%- for t in tools or [] %}{{- t | tojson(indent=4) + '\n\n' }}{%- endfor %}"
    "{%- for message in messages %}{%- if 'tool_calls' in message %}{%- if message.tool_calls|length != 1 %}"
    "{{- raise_exception('one call at once') }}{%- endif %}{%- set tool_call = message.tool_calls[0].function %}"
    '{{- \'<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "\' + tool_call.name + \'", "parameters": \' }}'
    "{{- tool_call.arguments | tojson }}{{- '}<|eot_id|>' }}{%- else %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
ITEMS = (  # as Qwen3-Coder: it takes objects alone
    "{% for tool in tools or [] %}{% for name in tool.function.parameters.properties | list %}{{ name }} {% endfor %}"
    "{% endfor %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call {{ call.function.name }}>{% for key, value in "
    "call.function.arguments.items() %}<{{ key }}>{{ value }}</{{ key }}>{% endfor %}</call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REPEATED = TOOLS.replace("{{ (call.function or call) | tojson }}", "{{ call.function }}")  # as Python shows objects
PRINTED = TOOLS.replace(
    "{{ (call.function or call) | tojson }}", "{{ call.function.name }} {{ call.function.arguments }}"
).replace("{{ tool | tojson }}", "{{ tool.function.name }}: {{ tool.function.parameters }}")
ARGUMENTS = {"place": 'a "b" \u00e9\nc', "days": [1, 2.5, True, None], "text": '{"is": "a text"}', "of": {}}


def conversation(write: Any) -> dict[str, Any]:
    """A row whose arguments, and parameters of tools, are written by a function."""
    messages, tool = copy.deepcopy(CALLED), copy.deepcopy(WEATHER)
    messages[1]["tool_calls"][0]["function"]["arguments"] = write(ARGUMENTS)
    tool["function"]["parameters"] = write(tool["function"]["parameters"])
    return {"messages": messages, "tools": [tool]}


@pytest.mark.parametrize("template", [QWEN, LLAMA, ITEMS, REPEATED])
def test_json_is_rendered_as_objects_are(template: str) -> None:
    texts, objects = conversation(json.dumps), conversation(lambda value: value)
    (sample,) = made([texts], template)
    assert sample["input_ids"] == rendered(template, objects["messages"], tools=objects["tools"])


@pytest.mark.parametrize(("template", "key"), [(QWEN, "arguments"), (LLAMA, "parameters")])
def test_what_is_learned_can_be_parsed(template: str, key: str) -> None:
    (sample,) = made([conversation(json.dumps)], template)
    text = learned(sample)[0]
    call = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert call == {"name": "weather", key: ARGUMENTS}


def test_a_template_that_prints_texts_gets_texts() -> None:
    row = conversation(lambda value: json.dumps(value, separators=(",", ":")))
    (sample,) = made([row], PRINTED)
    assert sample["input_ids"] == rendered(PRINTED, row["messages"], tools=row["tools"])


def test_the_format_of_trl_parses_them_too() -> None:
    (sample,) = made([conversation(json.dumps)], QWEN, Dialogue())
    objects = conversation(lambda value: value)
    assert json.loads(sample["tools"]) == objects["tools"]
    assert sample["messages"][1]["tool_calls"] == objects["messages"][1]["tool_calls"]


@pytest.mark.parametrize("arguments", ["place=a", "3", '"{}"'])
def test_arguments_that_are_no_object_are_refused_where_they_are_quoted(arguments: str) -> None:
    row = {"messages": [ASK, {"role": "assistant", "function_call": {"name": "weather", "arguments": arguments}}]}
    with refused("arguments", found=arguments):
        made([row], QWEN)
    assert learned(made([row], PRINTED)[0]) == [f"<call>weather {arguments}</call><|im_end|>\n"]


@pytest.mark.parametrize("value", ["", "{}", "null", "[1]", '{"name": ""}', '{"function": 3}', "weather(a)"])
def test_a_call_without_a_name_is_refused(value: str) -> None:
    rows = [{"from": "human", "value": "a"}, {"from": "function_call", "value": value}]
    with refused("conversations"):
        made([{"conversations": rows}], TOOLS, column="conversations")


def test_a_call_that_the_template_leaves_out_is_refused() -> None:
    first = TOOLS.replace("in message.tool_calls or []", "in (message.tool_calls or [])[:1]")
    calls = [{"type": "function", "function": {**CALL, "name": name}} for name in ("weather", "clock")]
    silent = TOOLS.replace("message.tool_calls", "(not message.content and message.tool_calls)")
    cases = [(first, {"content": "", "tool_calls": calls}), (silent, {"content": "so", "tool_calls": calls})]
    for template, turn in cases:
        with refused("tool_calls"):
            made([{"messages": [ASK, {"role": "assistant", **turn}]}], template)


def test_tools_that_the_template_reads_elsewhere_only_are_refused() -> None:
    template = "{# tools #}{% if tools and style %}{{ tools }}{% endif %}" + TOOLS[TOOLS.index("{% for message") :]
    row = {"messages": CALLED, "tools": [function("clock")]}
    with refused("tools"):
        made([row], template)
    assert byte_level().decode(made([{**row, "chat_template_kwargs": {"style": "a"}}], template)[0]["input_ids"])


FORMATS: list[Any] = [Chat, Dialogue]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("trainable", False), ("learn", 0), ("masked", True), ("reasoning", "so"), ("tools", [WEATHER]), ("name", "Ann")],
)
def test_a_key_of_a_turn_that_nothing_reads(kind: Any, key: str, value: Any) -> None:
    rows = [{"messages": TALK}, {"messages": [TALK[0], {**TALK[1], key: value}, *TALK[2:]]}]
    with refused(key, found=value, stream="s"):
        made(rows, CHATML, kind())
    plain = made([rows[0], rows[0]], CHATML, kind())
    assert made(rows, CHATML, kind(ignored_keys=[key])) == plain
    emptied = [rows[0], {"messages": [TALK[0], {**TALK[1], key: None}, *TALK[2:]]}]
    assert made(emptied, CHATML, kind()) == plain


@pytest.mark.parametrize("turn", [{"flag": False}, {"flag": True}, {"reasoning_content": "so"}, {"step": 0}])
def test_a_key_that_the_template_reads(turn: dict[str, Any]) -> None:
    template = "{% for one in messages %}" + QWEN3[QWEN3.index("<|im_start|>") :].replace(
        "message.reasoning_content or ''", "message.reasoning_content or message.flag or message.step"
    ).replace("message", "one").replace("loop.index0 > own.last", "loop.last")
    template = template.replace("one.content }}", "one.content }}{{ one.flag }}{{ one.step }}")
    made([{"messages": [TALK[0], {**TALK[1], **turn}, *TALK[2:]]}], template, Chat(train_on="all"))


@pytest.mark.parametrize("template", [CHATML, LLAMA3])
def test_a_tool_answers_a_call_by_its_name(template: str) -> None:
    answer = {"role": "tool", "tool_call_id": "call_0", "name": "weather", "content": "dry"}
    assert made([{"messages": [ASK, answer, *TALK[1:]]}], template)


def test_a_part_of_a_content() -> None:
    part = {"type": "text", "text": "rain?", "train": False}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "no", "train": None}]}
    row = {"messages": [{"role": "user", "content": [part]}, answer]}
    with refused("train"):
        made([row], CHATML)
    assert made([row], CHATML, ignored_keys=["train"])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("column", ["tool_defs", "persona", "score", "weight"])
def test_a_column_that_nothing_reads(kind: Any, column: str) -> None:
    said = {"tool_defs": [WEATHER], "persona": "a pirate", "score": 0.0, "weight": 0.5}[column]
    rows = [{"messages": CALLED, "tools": None, "id": 3, "prompt_id": "a", "source": "b", column: said}]
    with refused("ignored_columns", found=[column]):
        made(rows, TOOLS, kind())
    plain = made([{"messages": CALLED}], TOOLS, kind())
    assert made(rows, TOOLS, kind(ignored_columns=[column])) == plain
    assert made([{**rows[0], column: None}], TOOLS, kind()) == plain


def test_a_column_of_a_stream_of_rows() -> None:
    rows = datasets.Dataset.from_list([{"messages": TALK, "persona": "a pirate"}]).to_iterable_dataset()
    with refused("ignored_columns", found=["persona"]):
        formatted(rows, Chat(), byte_level(), called="s")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_that_validation_is_stratified_by_is_named_already(kind: Any, tmp_path: Path) -> None:
    rows = [{"messages": TALK, "topic": topic} for topic in "abab"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, validation = DataSource(str(tmp_path / "rows.jsonl")), Validation(0.5, stratify_by="topic")
    trained = {"trainer": "sft", "training": SimpleNamespace(dataset_text_field="text", assistant_only_loss=False)}
    built = StreamRecipe(data=data, format=kind(), validation=validation).build(
        "s", byte_level(), **({} if kind is Chat else trained)
    )
    assert len(built.evaluation) == 2
