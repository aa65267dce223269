"""Rows of chats, instructions and preferences in the shape that TRL's trainers take."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import datasets

from mixer.tools.recipe.data.formats.base import Format, Row, Sample
from mixer.tools.recipe.data.formats.conversation import ALL, COLUMNS, Message, check_columns, conversation_of
from mixer.tools.recipe.data.formats.images import COLUMNS as OF_IMAGES, FEATURE, RowImages
from mixer.tools.recipe.data.formats.rendering import Rendering, Template
from mixer.tools.recipe.data.formats.tokens import IS_PARSED
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidValueError, require, wrong_value

# The columns of each shape, the learned one last. A pair of answers has the prompt of one, or begins with it.
_SHAPES = {
    "messages": ("messages",),
    "conversations": ("conversations",),
    "Alpaca": ("instruction", "output"),
    "prompt and completion": ("prompt", "completion"),
}
_PAIR, _PROMPTS = ("chosen", "rejected"), ("prompt", "instruction", "conversations")
_SPACED = ("prompt", "completion", *_PAIR)
_TURNS, _KINDS = "turns", ("text", "image")


@dataclass(frozen=True)
class Dialogue(Format):
    """Rows of several shapes as TRL's trainers take them; the format of streams if a recipe names such a trainer.

    It recognises `messages`, ShareGPT's `conversations`, Alpaca's `instruction`, `input` and `output`, `prompt` and
    `completion`, and for preferences `chosen` and `rejected` with the prompt in `prompt`, in Alpaca's or ShareGPT's
    columns, or at the beginning of both answers. Prompts and answers are texts or turns; roles, system prompts and
    tools are read as by `Chat`. Plain texts are not rendered by the chat template, as with TRL, unless the loss is of
    the assistant's turns only.

    Args:
        rename: Other names of columns: `{"question": "prompt", "answer": "completion"}`.
        ignored_columns: Columns to leave unread that would be read or refused; `*` is all that would be refused.
        ignored_keys: Keys of turns to leave unread that would be read or refused.
        is_pair: Whether rows are preferences; the recipe's trainer decides.
        as_turns: Whether plain texts become turns; the recipe's trainer decides.
        image_folder: Folder where relative paths of images start; for the task `image-text-to-text` by default that of
            the data. Without it, images are refused.
        shape: The columns that are read, found in the data.
    """

    version: ClassVar[int] = 2
    tasks: ClassVar[Sequence[str]] = ("causal-lm", "sequence-classification", "image-text-to-text")
    reads_objects: ClassVar[bool] = True

    rename: Mapping[str, str] = field(default_factory=dict)
    ignored_columns: Sequence[str] = ()
    ignored_keys: Sequence[str] = ()
    is_pair: bool = False
    as_turns: bool = False
    image_folder: str | None = None
    shape: Sequence[str] = ()

    @property
    def columns(self) -> Sequence[str]:
        """See `Format.columns`."""
        written = {ours: theirs for theirs, ours in self.rename.items()}
        return [*self.rename, *(written.get(name, name) for name in self.shape if name not in self.rename.values())]

    @property
    def features(self) -> Any:
        """The features of its samples: turns are as they were written, without fields of other rows."""
        part = datasets.List(datasets.Json()) if self.as_turns else datasets.Value("string")
        beside = {"tools": datasets.Value("string"), "chat_template_kwargs": datasets.Json()} if self.as_turns else {}
        margin = {"margin": datasets.Value("float64")} if "margin" in self.shape else {}
        images = {} if self.image_folder is None else {"images": FEATURE}
        return datasets.Features({**dict.fromkeys(self._parts, part), **beside, **margin, **images})

    @property
    def _parts(self) -> list[str]:
        if not self.is_pair:
            return ["messages"] if self._is_whole else ["prompt", "completion"]
        return [*(["prompt"] if self._has_prompt else []), *_PAIR]

    @property
    def _is_whole(self) -> bool:
        return bool({"messages", "conversations"} & {*self.shape}) and not self.is_pair

    @property
    def _has_prompt(self) -> bool:
        return bool({*_PROMPTS} & {*self.shape})

    def fitted(self, dataset: DataSet, tokenizer: Any) -> "Dialogue":
        """Recognises the shape of the rows; see `Format.fitted`."""
        first = next(iter(dataset), None)
        if self.shape or first is None:
            return self
        row = self._named(first)
        shape = _pair_in(row) if self.is_pair else _shape_in(row)
        is_text = all(isinstance(row[name], str) for name in shape if name != "margin")
        of_turns = COLUMNS if self.image_folder is None else (*COLUMNS, *OF_IMAGES)
        as_turns = self.as_turns or not is_text or "instruction" in shape or any(name in row for name in of_turns)
        if as_turns and not tokenizer.chat_template:
            text = f"is needed to render turns, and {type(tokenizer).__name__} has none: take that of the model's"
            raise wrong_value("chat_template", f"{text} chat variant, or give the recipe chat_template.")
        return replace(self, shape=shape, as_turns=as_turns)

    def encode(self, rows: Sequence[Row], tokenizer: Any, task: str) -> list[Sample]:
        """See `Format.encode`."""
        template = Template(tokenizer)
        return [self._sample(self._named(row), template) for row in rows]

    def _named(self, row: Row) -> Row:
        return {self.rename.get(name, name): value for name, value in row.items() if name not in self.ignored_columns}

    def _sample(self, row: Row, template: Template) -> Sample:
        beside = (*(("input",) if "instruction" in self.shape else ()), *(OF_IMAGES if self.image_folder else ()))
        if ALL not in self.ignored_columns:
            check_columns(row, (*self.shape, *beside, *COLUMNS), "Dialogue")
        answers = {name: row[name] for name in _PAIR} if self.is_pair else {self._parts[-1]: row[self.shape[-1]]}
        margin = {"margin": row["margin"]} if "margin" in self.shape else {}
        if not self.as_turns:
            texts = {**answers, **({"prompt": row["prompt"]} if "prompt" in self.shape else {})}
            for name, value in texts.items():
                require(isinstance(value, str), name, "a text, as in the first row", value)
            return {**texts, **margin, **({} if self.image_folder is None else {"images": []})}
        images = None if self.image_folder is None else RowImages(row, self.image_folder)
        prompt, sample, is_parsed = self._prompt(row, images), dict[str, Any](), False
        arguments: dict[str, Any] = {}
        for name, answer in answers.items():
            turns = self._turns(answer, "assistant", name, images if self._is_whole else None)
            if turns[: len(prompt)] == prompt:  # the answer repeats it
                turns = turns[len(prompt) :]
            said = {name: row[name] for name in COLUMNS if name in row}
            conversation = conversation_of({**said, _TURNS: [*prompt, *turns]}, _TURNS, (), _KINDS)
            if images is not None:
                conversation = replace(conversation, messages=images.in_parts(conversation.messages))
            rendering = Rendering(conversation, template)
            messages, arguments = rendering.messages, dict(rendering.arguments)
            is_parsed = is_parsed or rendering.is_parsed
            place = 0 if not self._has_prompt or self._is_whole else len(messages) - len(turns)
            sample |= {name: messages[place:], **({"prompt": messages[:place]} if place else {})}
        tools = arguments.pop("tools", None)
        return {
            **sample,
            "tools": None if tools is None else json.dumps(tools),
            "chat_template_kwargs": arguments,
            IS_PARSED: is_parsed,
            **margin,
            **({} if images is None else {"images": images.sources()}),
        }

    def _prompt(self, row: Row, images: RowImages | None) -> list[Message]:
        if self._is_whole or not self._has_prompt:
            return []
        if "instruction" in self.shape:
            asked = [text for text in (row["instruction"], row.get("input")) if text]
            return self._turns("\n\n".join(asked), "user", "instruction", images)
        name = next(name for name in _PROMPTS if name in self.shape)
        return self._turns(row[name], "user", name, images)

    def _turns(self, value: Any, role: str, column: str, images: RowImages | None) -> list[Message]:
        """Reads turns: a text is one turn of a role.

        Raises:
            ValueError: If there are none, or TRL would learn some that are not to be learned.
        """
        if isinstance(value, str):  # texts have the space between prompt and answer, which turns do not
            turn = {"role": role, "content": value.strip() if column in _SPACED else value}
            return [turn if images is None else images.placed(turn)]
        if not value:
            raise InvalidValueError(f"column {column!r} has no value: remove the row.", option=column)
        turns = [value] if isinstance(value, Mapping) else value
        if images is not None and isinstance(turns, list):
            turns = [images.placed(turn) for turn in turns]
        kinds = _KINDS[: 1 if images is None else 2]
        read = conversation_of({column: turns}, column, self.ignored_keys, kinds)
        if read.unlearned:
            text = "has turns with a weight of 0, which TRL would learn: give the stream the format Chat."
            raise wrong_value(column, text)
        return read.messages


def shapes_in(columns: Collection[str]) -> dict[str, Sequence[str]]:
    """Finds the shapes of single answers that rows with these columns have, with their columns."""
    return {name: needed for name, needed in _SHAPES.items() if {*needed} <= {*columns}}


def _shape_in(row: Row) -> list[str]:
    """Finds the only shape in the columns of a row.

    Raises:
        ValueError: If there is none, or more than one.
    """
    found = shapes_in(row)
    if len(found) == 1:
        (columns,) = found.values()
        return list(columns)
    has = f"the data have the columns {list(row)}"
    if found:
        forms, (_, columns) = " and ".join(found), found.popitem()
        text = f"must choose one form of rows, such as {list(columns)}: {has}, which are {forms}."
        text += " Rows of different forms belong in streams of their own."
        raise wrong_value("data.columns", text, found=list(row))
    raise InvalidValueError(
        f"{has}, none of which holds a conversation: trainer sft takes messages, conversations, instruction and "
        "output, prompt and completion, or text. Name them by format: {class_path: Dialogue, init_args: {rename: "
        "{question: prompt, answer: completion}}}, or choose another format, such as Prompt.",
        option="rename",
        found=list(row),
    )


def _pair_in(row: Row) -> list[str]:
    prompt = next((name for name in _PROMPTS if name in row), None)
    if not {*_PAIR} <= row.keys():
        raise InvalidValueError(
            f"the data have the columns {list(row)}, and preferences are chosen and rejected with a prompt: name them "
            "by format: {class_path: Dialogue, init_args: {rename: {question: prompt, good: chosen, bad: rejected}}}.",
            option="rename",
            found=list(row),
        )
    return [*([prompt] if prompt else []), *_PAIR, *(["margin"] if "margin" in row else [])]
