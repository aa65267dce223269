"""The data that scripts and recipes run on here: what is in them, and that the same is written again."""

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from examples.data import CHATS, INTENTS, _first_paragraph
from tasks.sources import clinc150


@pytest.mark.parametrize("library", CHATS)
def test_conversations_ask_about_the_library_and_answer(written: Path, library: str) -> None:
    lines = (written / "data/examples/chat" / f"{library}.jsonl").read_text().splitlines()
    chats = [json.loads(line)["messages"] for line in lines]
    assert len(chats) > 300
    for question, answer in chats:
        assert (question["role"], answer["role"]) == ("user", "assistant")
        assert question["content"].startswith(f"What does {library}.")
        assert 30 <= len(answer["content"]) <= 240
    assert len({answer["content"] for _, answer in chats}) == len(chats)


def test_texts_to_train_on_are_not_those_to_evaluate_on(written: Path) -> None:
    folder = written / "data/examples/text"
    for pattern in ("english/%s.txt", "python/%s.jsonl"):
        train, validation = ((folder / (pattern % split)).read_text() for split in ("train", "validation"))
        assert len(train) > 5 * len(validation) > 100_000
        shared = set(train.splitlines()) & set(validation.splitlines())
        assert len(shared) < 0.1 * len(validation.splitlines())


def test_the_chat_template_marks_what_the_assistant_says(written: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(written / "data/examples/base")
    messages = [{"role": "user", "content": "What does len do?"}, {"role": "assistant", "content": "It counts."}]
    made = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids, marks = made["input_ids"], made["assistant_masks"]
    assert tokenizer.decode(ids) == "<user>What does len do?<assistant>It counts.<end>"
    assert tokenizer.decode([number for number, mark in zip(ids, marks, strict=True) if mark]) == "It counts.<end>"
    assert tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False).endswith(
        "<assistant>"
    )


@pytest.mark.parametrize(
    ("documentation", "first"),
    [
        ("norm(x, ord=None)\n\nMatrix or\nvector norm.\n\nMore.", "Matrix or vector norm."),
        ("abs(input) -> Tensor\n\nComputes :attr:`input`, see :func:`~torch.x`.", "Computes input, see torch.x."),
        (".. deprecated:: 1\n\nOld.", "Old."),
        ("sum(x)", ""),
        ("", ""),
    ],
)
def test_signatures_are_passed_over(documentation: str, first: str) -> None:
    assert _first_paragraph(documentation) == first


def test_the_requests_are_three_intents_of_each_domain() -> None:
    train, test = clinc150(INTENTS)
    assert Counter(train["label"]) == dict.fromkeys(range(30), 40)
    assert Counter(test["label"]) == dict.fromkeys(range(30), 10)
    assert Counter(train["domain"]) == dict.fromkeys(train.unique("domain"), 120)
    assert not set(train["text"]) & set(test["text"])
