"""Conversations with all that stands beside them: what is rendered is what the tokenizer's own template renders."""

import datetime
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from mixer.tools.recipe.data import Chat, DataSource, Format, formatted
from tests.mixer.tools.recipe.small_tokenizers import CHATML, byte_level
from tests.refusals import refused

_CALLS = "{% for call in message.tool_calls or [] %}<call>{{ (call.function or call) | tojson }}</call>{% endfor %}"
# Reads all that a template can be given.
TOOLS = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for document in documents or [] %}[{{ document.title }}: {{ document.text }}]\n{% endfor %}"
    "{% if style %}style {{ style }}\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    f"{_CALLS}<|im_end|>\n{{% endfor %}}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    f"{{{{ message.content | trim }}}}{_CALLS}<|eot_id|>{{% endfor %}}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}{# tools #}"
)
# Drops the reasoning of turns before the last one of a user.
QWEN3 = (
    "{% set own = namespace(last=0) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set own.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and loop.index0 > own.last %}<think>\n{{ message.reasoning_content or '' }}\n"
    "</think>\n\n{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    f"{{% generation %}}{{{{ message.content }}}}{_CALLS}<|im_end|>{{% endgeneration %}}\n"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Reads contents in parts, but those of the system as texts alone, as some models of images do.
PARTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string or message.role == 'system' %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ASK, ANSWER = {"role": "user", "content": "rain?"}, {"role": "assistant", "content": "no"}
TALK = [ASK, ANSWER, {"role": "user", "content": "sun?"}, {"role": "assistant", "content": "yes"}]


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": f"the {name}", "parameters": parameters}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": function(name, **properties)}


WEATHER = tool("weather", place={"type": "string", "enum": ["a", "b"]})
CLOCK = tool("clock", zone={"type": "integer"}, day={"type": "string", "description": "a day"})
CALL = {"name": "weather", "arguments": {"place": "a"}}
CALLED: list[dict[str, Any]] = [
    ASK,
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
    {"role": "tool", "content": "dry"},
    ANSWER,
]


def made(rows: Any, template: str, chosen: Format | None = None, **changes: Any) -> list[dict[str, Any]]:
    dataset = datasets.Dataset.from_list(rows) if isinstance(rows, list) else rows
    tokenizer = byte_level(chat_template=template, bos_token="<|endoftext|>")
    samples: list[dict[str, Any]] = formatted(dataset, chosen or Chat(**changes), tokenizer, called="s").to_list()
    return samples


def rendered(template: str, messages: Any, **arguments: Any) -> list[int]:
    """The tokens of the tokenizer's own template."""
    tokenizer = byte_level(chat_template=template, bos_token="<|endoftext|>")
    encoded: Any = tokenizer.apply_chat_template(messages, return_dict=True, **arguments)
    return list(encoded["input_ids"])


def learned(sample: dict[str, Any]) -> list[str]:
    """The texts that are learned: one for each row of labels that are not -100."""
    texts, own = [], list[int]()
    for label in [*sample["labels"], -100]:
        if label != -100:
            own.append(label)
        elif own:
            texts.append(str(byte_level().decode(own)))
            own = []
    return texts


class TestColumns:
    @pytest.mark.parametrize("template", [TOOLS, MARKED])
    @pytest.mark.parametrize("write", [lambda tools: tools, json.dumps, lambda tools: list(map(json.dumps, tools))])
    def test_tools_are_rendered(self, template: str, write: Any) -> None:
        given = [[WEATHER], [CLOCK, WEATHER]]  # Arrow gives each the fields of both
        samples = made([{"messages": CALLED, "tools": write(tools)} for tools in given], template)
        for sample, tools in zip(samples, given, strict=True):
            assert sample["input_ids"] == rendered(template, CALLED, tools=tools)
            end = "<|im_end|>" if template == MARKED else "<|im_end|>\n"
            assert learned(sample) == [f"<call>{json.dumps(CALL)}</call>{end}", f"no{end}"]

    @pytest.mark.parametrize("streaming", [False, True])
    def test_a_file_of_lines_says_the_same(self, streaming: bool, tmp_path: Path) -> None:
        # The lines differ in their fields: no call, another tool, no tools.
        rows = [
            {"messages": TALK, "tools": [CLOCK]},
            {"messages": CALLED, "tools": [WEATHER, CLOCK]},
            {"messages": TALK},
        ]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        dataset, _ = DataSource(str(tmp_path / "a.jsonl"), streaming=streaming).load("s")
        samples = list(formatted(dataset, Chat(), byte_level(chat_template=TOOLS), called="s"))
        expected = [rendered(TOOLS, row["messages"], tools=row.get("tools")) for row in rows]
        assert [sample["input_ids"] for sample in samples] == expected

    def test_functions_are_tools(self) -> None:
        (sample,) = made([{"messages": TALK, "functions": [function("clock", zone={"type": "integer"})]}], TOOLS)
        assert sample["input_ids"] == rendered(TOOLS, TALK, tools=[tool("clock", zone={"type": "integer"})])
        with refused("functions"):
            made([{"messages": TALK, "functions": [function("clock")], "tools": [WEATHER]}], TOOLS)

    @pytest.mark.parametrize("template", [CHATML, LLAMA3, QWEN3, MARKED])
    @pytest.mark.parametrize("name", ["system", "system_prompt"])
    def test_a_system_column_is_the_first_message(self, template: str, name: str) -> None:
        own = [{"role": "system", "content": "be brief"}, *TALK]
        # Said again in the conversation, and absent.
        rows = [{"messages": said, name: text} for said, text in [(TALK, "be brief"), (own, "be brief"), (TALK, None)]]
        samples = made(rows, template)
        assert [one["input_ids"] for one in samples] == [rendered(template, said) for said in (own, own, TALK)]
        assert learned(samples[0]) == learned(samples[2])

    def test_a_system_column_that_contradicts_the_conversation_is_refused(self) -> None:
        row = {"messages": [{"role": "system", "content": "be long"}, *TALK], "system": "be brief"}
        with refused("system"):
            made([row], CHATML)
        (sample,) = made([row], CHATML, ignored_columns=["system"])
        assert sample["input_ids"] == rendered(CHATML, row["messages"])

    def test_documents_and_variables_of_the_template(self) -> None:
        documents = [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}]
        variables = {"style": "short"}
        rows: list[dict[str, Any]] = [
            {"messages": TALK, "documents": documents, "chat_template_kwargs": variables},
            {"messages": TALK, "documents": [], "chat_template_kwargs": None},
        ]
        expected = [rendered(TOOLS, TALK, documents=documents, **variables), rendered(TOOLS, TALK)]
        assert [sample["input_ids"] for sample in made(rows, TOOLS)] == expected
        (sample,) = made([{**rows[0], "chat_template_kwargs": json.dumps(variables)}], TOOLS)
        assert sample["input_ids"] == expected[0]

    def test_a_variable_is_not_given_twice(self) -> None:
        row = {"messages": TALK, "tools": [WEATHER], "chat_template_kwargs": json.dumps({"tools": [CLOCK]})}
        with refused("chat_template_kwargs"):
            made([row], TOOLS)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("tools", [WEATHER]), ("documents", [{"text": "a"}]), ("chat_template_kwargs", {"style": "short"})],
    )
    def test_what_the_template_does_not_read_is_refused(self, name: str, value: Any) -> None:
        row = {"messages": TALK, name: value}
        with refused("style" if name == "chat_template_kwargs" else name):
            made([row], CHATML)
        (sample,) = made([row], CHATML, ignored_columns=[name])
        assert sample["input_ids"] == rendered(CHATML, TALK)

    @pytest.mark.parametrize(
        ("name", "value"), [("tools", "weather"), ("tools", [3]), ("system", 3), ("chat_template_kwargs", "[3]")]
    )
    def test_columns_of_another_kind_are_refused(self, name: str, value: Any) -> None:
        with refused(name):
            made([{"messages": TALK, name: value}], TOOLS)


class TestTurns:
    @pytest.mark.parametrize("template", [CHATML, LLAMA3, QWEN3, MARKED])
    @pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"weight": 0.0}])
    def test_a_turn_of_weight_0_is_not_learned(self, template: str, mark: Any) -> None:
        messages = [TALK[0], {**TALK[1], **mark}, *TALK[2:]]
        (sample,), (plain,) = made([{"messages": messages}], template), made([{"messages": TALK}], template)
        assert sample["input_ids"] == plain["input_ids"] == rendered(template, TALK)
        first, second = learned(plain)
        assert first.startswith("no")
        assert learned(sample) == [second]
        (same,) = made([{"messages": [TALK[0], {**TALK[1], **dict.fromkeys(mark, 1)}, *TALK[2:]]}], template)
        assert same == plain

    def test_all_turns_are_learned_but_those_of_weight_0(self) -> None:
        messages = [{**TALK[0], "weight": 0}, *TALK[1:]]
        (sample,) = made([{"messages": messages}], CHATML, train_on="all")
        assert learned(sample) == [byte_level().decode(rendered(CHATML, TALK[1:]))]

    def test_a_weight_moves_with_its_turn_behind_a_system_column(self) -> None:
        messages = [*TALK[:3], {**TALK[3], "weight": 0}]
        assert learned(made([{"messages": messages, "system": "s"}], CHATML)[0]) == ["no<|im_end|>\n"]

    @pytest.mark.parametrize("mark", [{"weight": 0.5}, {"weight": 2}, {"train": "no"}])
    def test_other_weights_are_refused(self, mark: Any) -> None:
        with refused(next(iter(mark)), found=next(iter(mark.values()))):
            made([{"messages": [TALK[0], {**TALK[1], **mark}]}], CHATML)

    def test_reasoning_that_the_template_drops_is_not_learned(self) -> None:
        messages = [TALK[0], {**TALK[1], "reasoning_content": "r1"}, TALK[2], {**TALK[3], "reasoning_content": "r2"}]
        (sample,) = made([{"messages": messages}], QWEN3)
        assert sample["input_ids"] == rendered(QWEN3, messages)
        assert learned(sample) == ["no<|im_end|>\n", "<think>\nr2\n</think>\n\nyes<|im_end|>\n"]

    @pytest.mark.parametrize("template", [CHATML, PARTS])
    def test_parts_of_text_are_read_as_their_text(self, template: str) -> None:
        parts = {role: [{"type": "text", "text": text} for text in role] for role in ("system", "user", "assistant")}
        messages = [{"role": role, "content": content} for role, content in parts.items()]
        (sample,) = made([{"messages": messages}], template)
        joined = [{"role": role, "content": role} for role in parts]
        assert sample["input_ids"] == rendered(template, joined)
        assert learned(sample) == ["assistant<|im_end|>\n"]

    def test_parts_of_another_kind_are_refused(self) -> None:
        content = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "a.png"}}]
        with refused("messages", found=["image_url"]):
            made([{"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": []}]}], PARTS)

    @pytest.mark.parametrize("value", [datetime.datetime(2024, 1, 31), datetime.date(2024, 1, 31), 3.10, True])
    def test_what_can_be_written_in_several_ways_is_refused(self, value: Any) -> None:
        messages = [{"role": role, "content": value} for role in ("user", "assistant")]
        with refused("messages", found=value):
            made([{"messages": messages}], TOOLS)

    @pytest.mark.parametrize("template", [CHATML, TOOLS])
    def test_whole_numbers_are_read_by_their_digits(self, template: str) -> None:
        texts, numbers = (
            [{"role": "user", "content": kind(1)}, {"role": "assistant", "content": kind(2)}] for kind in (str, int)
        )
        (sample,) = made([{"messages": numbers}], template)
        assert sample["input_ids"] == rendered(template, texts)

    def test_the_end_of_a_turn_is_learned_but_not_the_begin_of_the_next(self) -> None:
        # As Phi's: the conversation ends with another token than a turn.
        template = (
            "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}"
        )
        (sample,) = made([{"messages": TALK}], template)
        assert sample["input_ids"] == rendered(template, TALK)
        assert learned(sample) == ["no<|end|>\n", "yes<|end|>\n<|endoftext|>"]

    def test_a_role_that_the_template_leaves_out_is_refused(self) -> None:
        template = "{% for one in messages %}{% if one.role != 'system' %}" + "{{ one.role }} {{ one.content }}\n"
        # Its content stands in the text by chance.
        with refused("chat_template", found="system"):
            made([{"messages": TALK, "system": "sun"}], template + "{% endif %}{% endfor %}")


class TestOlderRoles:
    def test_a_function_call_is_learned(self) -> None:
        older = [ASK, {"role": "assistant", "content": None, "function_call": CALL}]
        older += [{"role": "function", "name": "weather", "content": "dry"}, ANSWER]
        (sample,) = made([{"messages": older, "functions": [WEATHER["function"]]}], TOOLS)
        calls = {"role": "assistant", "tool_calls": CALLED[1]["tool_calls"]}
        newer = [ASK, calls, {"role": "tool", "name": "weather", "content": "dry"}, ANSWER]
        assert sample["input_ids"] == rendered(TOOLS, newer, tools=[WEATHER])
        assert learned(sample) == [f"<call>{json.dumps(CALL)}</call><|im_end|>\n", "no<|im_end|>\n"]

    @pytest.mark.parametrize("result", ["observation", "tool", "function", "function_response"])
    def test_sharegpt_with_tools(self, result: str) -> None:
        older = [("system", "s"), ("human", "rain?"), ("function_call", json.dumps(CALL)), (result, "dry")]
        rows = [{"from": name, "value": text} for name, text in [*older, ("gpt", "no")]]
        (sample,) = made([{"conversations": rows, "tools": json.dumps([WEATHER])}], TOOLS, column="conversations")
        calls = {"role": "assistant", "tool_calls": CALLED[1]["tool_calls"]}
        newer = [{"role": "system", "content": "s"}, ASK, calls, CALLED[2], ANSWER]
        assert sample["input_ids"] == rendered(TOOLS, newer, tools=[WEATHER])
        assert learned(sample) == [f"<call>{json.dumps(CALL)}</call><|im_end|>\n", "no<|im_end|>\n"]

    def test_calls_written_in_json_are_calls(self) -> None:
        older = [ASK, {**CALLED[1], "tool_calls": json.dumps(CALLED[1]["tool_calls"])}, *CALLED[2:]]
        assert made([{"messages": older}], TOOLS) == made([{"messages": CALLED}], TOOLS)
