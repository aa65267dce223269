from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import pytest
import torch
from hypothesis import given, settings, strategies as st

from mixer.tools.recipe.data import Chat, Format, Labelled, Prompt, Text, formatted
from mixer.tools.recipe.data.collators import collator_for, ensure_pad_token
from mixer.tools.recipe.data.formats.text import cut_into_blocks
from tests.mixer.tools.recipe.small_tokenizers import CHATML, MARKED, byte_level, of_words
from tests.refusals import refused

BYTES = byte_level()
WORDS = of_words("good bad film food so")
END, START, STOP, NEWLINE = 0, 1, 2, 202
A = 68  # the token of "a"; those of the other letters follow
TALK = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "bc"},
    {"role": "user", "content": "d"},
    {"role": "assistant", "content": "e"},
]


def made(rows: list[dict[str, Any]], chosen: Format, tokenizer: Any = BYTES, task: str = "causal-lm") -> list[Any]:
    dataset = datasets.Dataset.from_list(rows)
    return formatted(dataset, chosen, tokenizer, task, "streams.s").to_list()


def learned(sample: dict[str, Any]) -> str:
    return BYTES.decode([label for label in sample["labels"] if label != -100])


@pytest.mark.parametrize(
    ("texts", "chosen", "tokenizer", "task", "expected"),
    [
        # Packed with the end of text between documents, or by row, cut off; an encoder's have a first and a last token.
        (
            ["abc", None, "de", "", "fg"],
            Text(max_length=4),
            BYTES,
            "causal-lm",
            [[A, 69, 70, END], [71, 72, END, 73], [74, END]],
        ),
        (["ab", "", "abcdef"], Text(max_length=4, pack=False), BYTES, "causal-lm", [[A, 69, END], [A, 69, 70, 71]]),
        (["good film", "bad"], Text(max_length=16), WORDS, "masked-lm", [[1, 5, 7, 2, 1, 6, 2]]),
        (["good bad film"], Text(max_length=4, pack=False), WORDS, "masked-lm", [[1, 5, 6, 2]]),
    ],
)
def test_text(texts: Any, chosen: Format, tokenizer: Any, task: str, expected: list[list[int]]) -> None:
    samples = made([{"text": text} for text in texts], chosen, tokenizer, task)
    assert [sample["input_ids"] for sample in samples] == expected
    for sample in samples:
        assert sample.get("labels", None) == (sample["input_ids"] if task == "causal-lm" else None)


def test_a_prompt_is_read_and_its_completion_learned() -> None:
    rows = [{"q": "ab", "a": {"text": "c"}}, {"q": "b", "a": {"text": "dd"}}]
    samples = made(rows, Prompt("{q}\n", "{a[text]}"))
    assert samples[0] == {"input_ids": [A, 69, NEWLINE, 70, END], "labels": [-100, -100, -100, 70, END]}
    assert samples[1] == {"input_ids": [69, NEWLINE, 71, 71, END], "labels": [-100, -100, 71, 71, END]}
    both = made(rows, Prompt("{q}\n", "{a[text]}", train_on_prompt=True))
    assert both[0]["labels"] == both[0]["input_ids"] == samples[0]["input_ids"]


def test_a_prompt_of_a_model_with_an_encoder_stands_on_its_own_side() -> None:
    (sample,) = made([{"q": "good", "a": "bad film"}], Prompt("{q}", "{a}", 3), WORDS, "seq2seq-lm")
    assert sample == {"input_ids": [1, 5, 2], "labels": [1, 6, 2]}
    with refused("train_on_prompt"):
        made([{"q": "good", "a": "bad"}], Prompt("{q}", "{a}", train_on_prompt=True), WORDS, "seq2seq-lm")


def test_a_prompt_and_its_completion_as_a_chat_are_the_turns_of_one() -> None:
    rows = [{"q": "a", "a": "bc"}, {"q": "d", "a": None}]
    for prompt, chat in (({}, {}), ({"train_on_prompt": True}, {"train_on": "all"})):
        samples = made(rows, Prompt("{q}", "{a}", 40, as_chat=True, **prompt))
        assert samples == made([{"messages": TALK[:2]}], Chat(max_length=40, **chat))


def test_a_chat_needs_a_template_and_a_model_without_an_encoder() -> None:
    rows = [{"q": "good", "a": "bad"}]
    with refused("chat_template"):
        made(rows, Prompt("{q}", "{a}", as_chat=True), byte_level(chat_template=None))
    with refused("as_chat"):
        made(rows, Prompt("{q}", "{a}", as_chat=True), BYTES, "seq2seq-lm")


PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}{% if not add_generation_prompt %}.{% endif %}"


@pytest.mark.parametrize(
    ("chosen", "task", "tokenizer", "num_wholly", "num_partly"),
    [
        # Tokens with the end: 1 + 2, 1 + 4, 4 + 2.
        (Prompt("{q}", "{a}", 4), "causal-lm", BYTES, 1, 1),
        (Prompt("{q}", "{a}", 4, train_on_prompt=True), "causal-lm", BYTES, 0, 2),
        (Chat(max_length=4, chat_template=PLAIN, ignored_columns=["q", "a", "w"]), "causal-lm", BYTES, 1, 1),
        (Text("a", 3, pack=False), "causal-lm", BYTES, 0, 1),
        (Text("a", 3), "causal-lm", BYTES, 0, 0),  # nothing is cut off
        # Words between a first and a last token.
        (Prompt("{q}", "{w}", 3), "seq2seq-lm", WORDS, 0, 1),
    ],
)
def test_answers_that_are_cut_off_are_told(chosen, task, tokenizer, num_wholly, num_partly, caplog) -> None:
    rows: list[dict[str, Any]] = [
        {"q": asked, "a": told, "w": words}
        for asked, told, words in [("a", "b", "bad"), ("a", "bcd", "good film"), ("abcd", "e", "so")]
    ]
    for row in rows:
        row["messages"] = [{"role": "user", "content": row["q"]}, {"role": "assistant", "content": row["a"]}]
    expected = [f"streams.s: {num_wholly} of 3 rows are left out"] if num_wholly else []
    expected += [f"streams.s: the end of what is learned is cut off in {num_partly} of 3 rows"] if num_partly else []
    for _ in range(2):  # the second time from the cache
        made(rows, chosen, tokenizer, task)
        assert all(text.startswith(begin) for text, begin in zip(caplog.messages, expected, strict=True))
        assert all(
            f"The answer of {num_wholly} of them is cut off" in text for text in caplog.messages[: num_wholly > 0]
        )
        caplog.clear()


@pytest.mark.parametrize(("task", "tokenizer"), [("causal-lm", BYTES), ("seq2seq-lm", WORDS)])
def test_rows_without_a_completion_do_not_teach_to_say_nothing(task: str, tokenizer: Any) -> None:
    rows = [{"q": "good", "a": {"b": text}} for text in ("bad", "", None)] + [{"q": "film", "a": None}]
    for completion in ("{a[b]}", "so {a[b]}"):
        assert len(made(rows, Prompt("{q}", completion), tokenizer, task)) == 1
    assert len(made(rows, Prompt("{q}", "so"), tokenizer, task)) == 4
    asked = made([{"q": None, "a": "bad"}], Prompt("{q}:", "{a}"))
    assert learned(asked[0]) == "bad<|endoftext|>"


TALK_TOKENS = [
    *(START, 88, 86, 72, 85, NEWLINE, A, STOP, NEWLINE),  # user: a
    *(START, 68, 86, 86, 76, 86, 87, 68, 81, 87, NEWLINE, 69, 70, STOP, NEWLINE),  # assistant: bc
    *(START, 88, 86, 72, 85, NEWLINE, 71, STOP, NEWLINE),
    *(START, 68, 86, 86, 76, 86, 87, 68, 81, 87, NEWLINE, 72, STOP, NEWLINE),
]


@pytest.mark.parametrize(("template", "tail"), [(CHATML, [NEWLINE]), (MARKED, [-100])])
def test_only_what_the_assistant_says_is_learned(template: str, tail: list[int], tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(template)
    for chosen in (template, str(tmp_path / "own.jinja")):
        (sample,) = made([{"messages": TALK}], Chat(chat_template=chosen))
        assert sample["input_ids"] == TALK_TOKENS
        ignored = [-100] * 20
        assert sample["labels"] == [*ignored, 69, 70, STOP, *tail, *ignored, 72, STOP, *tail]
    for name in ("other.jinja", "other"):
        with refused("chat_template", stream="streams.s", found=str(tmp_path / name)):
            made([{"messages": TALK}], Chat(chat_template=str(tmp_path / name)))


# Puts something before the first message, as templates with a system prompt of their own do.
GREETED = "{{ '<|im_start|>system\na<|im_end|>\n' }}" + CHATML


@pytest.mark.parametrize("template", [CHATML, MARKED, GREETED])
def test_a_conversation_may_begin_with_the_assistant(template: str) -> None:
    (sample,) = made([{"messages": TALK[1:]}], Chat(chat_template=template))
    end = "" if template == MARKED else "\n"
    assert learned(sample) == f"bc<|im_end|>{end}e<|im_end|>{end}"


def test_sharegpt_is_the_same_conversation() -> None:
    expected = made([{"messages": TALK}], Chat())
    for user, assistant in [("human", "gpt"), ("User", "Assistant"), ("Human", "model"), ("human", "BOT")]:
        names = {"user": user, "assistant": assistant}
        rows = [{"conversations": [{"from": names[turn["role"]], "value": turn["content"]} for turn in TALK]}]
        assert made(rows, Chat("conversations")) == expected
    capitals = [{"role": turn["role"].upper(), "content": turn["content"]} for turn in TALK]
    assert made([{"messages": capitals}], Chat()) == expected
    (everything,) = made(rows, Chat("conversations", train_on="all", max_length=9))
    assert everything == {"input_ids": TALK_TOKENS[:9], "labels": TALK_TOKENS[:9]}


# Says how many messages there are before them, so that no part of a conversation is rendered as the whole is.
COUNTED = "{{ messages | length }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('users begin') }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("chat", "tokenizer", "rows", "option", "found"),
    [
        (Chat(), byte_level(chat_template=None), TALK, "chat_template", None),
        (Chat(chat_template=COUNTED), BYTES, TALK, "chat_template", None),
        (Chat(chat_template=STRICT), BYTES, TALK[1:], "chat_template", ["assistant", "user", "assistant"]),
        (Chat(), BYTES, [{"speaker": "a"}], "messages", ["speaker"]),
        (Chat(), BYTES, TALK[:1], "format", None),
        (Chat(max_length=2), BYTES, TALK, "format", None),
        (Chat(), BYTES, [*TALK, {"role": "Critic", "content": "a"}], "role", "critic"),
        (Chat(), BYTES, "hello", "messages", "'hello'"),
    ],
)
def test_conversations_that_cannot_be_told_apart_are_refused(chat, tokenizer, rows, option, found) -> None:
    with refused(option, stream="streams.s", found=found):
        made([{"messages": rows}], chat, tokenizer)


def test_words_are_numbered_in_their_order_and_numbers_stay() -> None:
    rows = [{"text": "good film", "label": "pos"}, {"text": "bad", "label": "neg"}]
    samples = made(rows, Labelled(), WORDS, "sequence-classification")
    assert [(sample["input_ids"], sample["labels"]) for sample in samples] == [([1, 5, 7, 2], 1), ([1, 6, 2], 0)]
    assert made([{"text": "so", "label": 3}], Labelled(), WORDS, "encoder")[0]["labels"] == 3
    assert made([{"text": "so", "label": 0.5}], Labelled(), WORDS, "encoder")[0]["labels"] == 0.5
    for chosen, kind in [(Labelled(), float), (Labelled(labels=["no", "yes"]), int)]:
        (number,) = made([{"text": "so", "label": 1.0}], chosen, WORDS, "encoder")
        assert (number["labels"], type(number["labels"])) == (1, kind)
    given = Labelled(labels=["pos", "neg"])
    assert [sample["labels"] for sample in made(rows, given, WORDS, "encoder")] == [0, 1]


def test_a_class_label_is_respected_and_pairs_are_told_apart() -> None:
    text, kind = datasets.Value("string"), datasets.ClassLabel(names=["z", "a"])
    features = datasets.Features({"a": text, "b": text, "y": kind})
    rows = datasets.Dataset.from_dict({"a": ["good"], "b": ["so bad"], "y": ["a"]}, features=features)
    (sample,) = formatted(rows, Labelled("a", "b", "y"), WORDS, "sequence-classification").to_list()
    assert (sample["input_ids"], sample["labels"]) == ([1, 5, 2, 9, 6, 2], 1)


def test_rows_without_a_text_have_no_class_to_learn() -> None:
    rows = [{"text": text, "label": label} for text, label in [("so", 1), (None, 0), ("", 1), (None, None)]]
    assert [sample["input_ids"] for sample in made(rows, Labelled(), WORDS, "encoder")] == [[1, 9, 2]]
    pairs = [{"text": text, "b": other, "label": 1} for text, other in (("so", ""), ("", "so"), ("", ""))]
    assert len(made(pairs, Labelled(text_pair="b"), WORDS, "encoder")) == 2


@pytest.mark.parametrize(
    ("chosen", "task", "rows", "option", "found"),
    [
        (Text(), "causal-lm", [{"txt": "a"}], "text", None),
        (Text(), "causal-lm", [{"text": "a"}], "max_length", None),
        (Text(max_length=8), "causal-lm", [{"text": 0.5}], "text", 0.5),
        (Text(), "seq2seq-lm", [{"text": "a"}], "task", "seq2seq-lm"),
        (Labelled(), "encoder", [{"text": "a", "label": None}], "label", None),
        (Labelled(labels=["x"]), "encoder", [{"text": "a", "label": "y"}], "label", "y"),
        (Labelled(), "encoder", [{"text": "a", "label": ["x"]}], "label", ["x"]),
    ],
)
def test_rows_that_do_not_fit_name_stream_and_column(chosen, task, rows, option, found) -> None:
    with refused(option, stream="streams.s", found=found):
        made(rows, chosen, BYTES, task)


@pytest.mark.parametrize(
    ("chosen", "column", "good", "bad", "option"),
    [
        (Prompt("a", "{x[2]}"), "x", ["0", "1", "2"], ["0"], None),
        (Prompt("a", "{x[c]}"), "x", None, {"b": "1"}, None),
        (Prompt("a", "{x.b}"), "x", None, "1", None),
        (Prompt("a", "{x[b]}"), "x", None, "1", None),
        (Chat(ignored_columns=["text"]), "messages", TALK, [{"role": "user", "content": None}], "chat_template"),
        (Labelled(labels=["a"]), "label", "a", "b", "label"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_row_that_cannot_be_read_is_named(chosen, column, good, bad, option, streaming) -> None:
    rows = datasets.Dataset.from_list([{column: value, "text": "a"} for value in (good, good, bad, bad)])
    with refused(option, stream="streams.s") as caught:
        list(formatted(rows.to_iterable_dataset() if streaming else rows, chosen, BYTES, chosen.tasks[0], "streams.s"))
    assert "(row 2, counted" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: Text(max_length=1), "max_length"),
        (lambda: Prompt("what", "that"), "prompt"),
        (lambda: Prompt("{q", "{a}"), "prompt"),
        (lambda: Prompt("{a}", "{}"), "completion"),
        (lambda: Chat(train_on="user"), "train_on"),
        (lambda: Labelled(labels=["a", "a"]), "labels"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Any, option: str) -> None:
    with refused(option):
        make()


def test_a_tokenizer_without_an_end_is_refused() -> None:
    with refused("eos_token"):
        made([{"text": "a"}], Text(max_length=4), byte_level(eos_token=None))


DOCUMENTS = st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=12)


@given(DOCUMENTS, st.integers(1, 7))
def test_blocks_are_the_documents_cut_anew(documents: list[list[int]], length: int) -> None:
    blocks = cut_into_blocks(documents, length)
    assert list(chain.from_iterable(blocks)) == list(chain.from_iterable(documents))
    assert all(len(block) == length for block in blocks[:-1])
    assert all(0 < len(block) <= length for block in blocks[-1:])


@settings(max_examples=8)
@given(st.lists(st.text("abc", max_size=9), min_size=1, max_size=20).filter(any), st.integers(2, 8))
def test_streamed_and_stored_rows_give_the_same_blocks(texts: list[str], length: int) -> None:
    rows = datasets.Dataset.from_dict({"text": texts})
    with mock.patch("mixer.tools.recipe.data.formatting.ROWS_AT_ONCE", 4):
        stored = formatted(rows, Text(max_length=length), BYTES)["input_ids"]
        streamed = formatted(rows.to_iterable_dataset(), Text(max_length=length), BYTES)
        assert [sample["input_ids"] for sample in streamed] == list(stored)
    told = "".join(BYTES.decode(block) for block in stored)
    # One end of text that would be a block by itself is left out, at the end of each four rows.
    assert told.replace("<|endoftext|>", "") == "".join(texts)


def test_a_stream_goes_on_from_its_state() -> None:
    rows = datasets.Dataset.from_dict({"text": [f"row {number}" for number in range(40)]})
    with mock.patch("mixer.tools.recipe.data.formatting.ROWS_AT_ONCE", 8):
        stream = formatted(rows.to_iterable_dataset(), Text(max_length=16), BYTES)
        whole = list(stream)
        begun = iter(stream)
        first = [next(begun) for _ in range(7)]
        state = stream.state_dict()
        again = formatted(rows.to_iterable_dataset(), Text(max_length=16), BYTES)
        again.load_state_dict(state)
        assert first + list(again) == whole


SAMPLES = [{"input_ids": [68, 69, 0], "labels": [-100, 69, 0]}, {"input_ids": [70], "labels": [70]}]


@pytest.mark.parametrize("task", ["causal-lm", "seq2seq-lm"])
def test_labels_of_language_models_are_padded_to_be_left_out(task: str) -> None:
    batch = collator_for(task, byte_level())(SAMPLES)
    assert batch["labels"].tolist() == [[-100, 69, 0], [70, -100, -100]]
    assert batch["input_ids"].tolist() == [[68, 69, 0], [70, 3, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_an_end_that_also_pads_is_learned_where_it_is_the_end() -> None:
    tokenizer = byte_level(pad_token=None)
    ensure_pad_token(tokenizer, "causal-lm")
    batch = collator_for("causal-lm", tokenizer)(SAMPLES)
    assert batch["input_ids"].tolist() == [[68, 69, 0], [70, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 69, 0], [70, -100, -100]]


def test_tokens_are_masked_and_classes_are_left_alone() -> None:
    torch.manual_seed(0)
    masked = collator_for("masked-lm", WORDS)([{"input_ids": [1, 5, 6, 7, 5, 6, 7, 2]}] * 8)
    is_learned = masked["labels"] != -100
    assert 0 < int(is_learned.sum()) < is_learned.numel() / 2
    classes = collator_for("sequence-classification", WORDS)(
        [{"input_ids": [1, 5, 2], "labels": 1}, {"input_ids": [1, 2], "labels": 0}]
    )
    assert classes["labels"].tolist() == [1, 0]
    assert classes["input_ids"].tolist() == [[1, 5, 2], [1, 2, 0]]


@pytest.mark.parametrize("task", ["sequence-classification", "masked-lm", "seq2seq-lm"])
def test_a_tokenizer_without_a_pad_token_is_refused_where_it_needs_one(task: str) -> None:
    with refused("pad_token"):
        ensure_pad_token(byte_level(pad_token=None), task)
    with refused("pad_token"):
        ensure_pad_token(byte_level(pad_token=None, eos_token=None), "causal-lm")


def test_rows_that_were_masked_before_keep_their_labels() -> None:
    rows = [{"input_ids": [1, 3, 6, 2], "labels": [-100, 5, -100, -100]}, {"input_ids": [1, 2], "labels": [-100, 7]}]
    batch = collator_for("masked-lm", WORDS)(rows)
    assert batch["input_ids"][0].tolist() == [1, 3, 6, 2]
    assert batch["labels"].tolist() == [[-100, 5, -100, -100], [-100, 7, -100, -100]]
