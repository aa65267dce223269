"""Which tokens of a conversation the assistant says."""

import re
from typing import Any

from jinja2 import TemplateError

Message = dict[str, Any]  # with a role, mostly with a content

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def has_generation_mask(tokenizer: Any, template: str | None) -> bool:
    """Says whether a chat template marks what the assistant says.

    Args:
        tokenizer: The tokenizer.
        template: A template in place of its own.

    Returns:
        Whether it has `{% generation %}`.
    """
    return _GENERATION.search(tokenizer.get_chat_template(template)) is not None


def render(messages: list[Message], tokenizer: Any, template: str | None, for_answer: bool = False) -> str:
    """Writes a conversation as text.

    Args:
        messages: The conversation.
        tokenizer: The tokenizer.
        template: A template in place of its own.
        for_answer: Whether to end with what an answer of the assistant begins with.

    Returns:
        The text.

    Raises:
        ValueError: If the template cannot be rendered, or refuses the conversation.
    """
    text: str = _applied(messages, tokenizer, template, tokenize=False, add_generation_prompt=for_answer)
    return text


def _applied(messages: list[Message], tokenizer: Any, template: str | None, **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(messages, chat_template=template, **options)
    except TemplateError as error:
        roles = [message.get("role") for message in messages]
        raise ValueError(f"the chat template refuses a conversation of {roles}: {error}") from error


def mask_by_template(messages: list[Message], tokenizer: Any, template: str | None) -> tuple[list[int], list[bool]]:
    """Finds what the assistant says by a template that marks it.

    Args:
        messages: The conversation.
        tokenizer: The tokenizer.
        template: A template in place of its own.

    Returns:
        The tokens, and whether each is the assistant's.

    Raises:
        ValueError: If the template cannot be rendered, or refuses the conversation.
    """
    _check_is_fast(tokenizer)
    encoded = _applied(messages, tokenizer, template, return_dict=True, return_assistant_tokens_mask=True)
    return list(encoded["input_ids"]), [bool(said) for said in encoded["assistant_masks"]]


def mask_by_prefixes(messages: list[Message], tokenizer: Any, template: str | None) -> tuple[list[int], list[bool]]:
    """Finds what the assistant says by rendering the conversation up to and with each of its turns.

    Args:
        messages: The conversation.
        tokenizer: The tokenizer.
        template: A template in place of its own.

    Returns:
        The tokens, and whether each is the assistant's.

    Raises:
        ValueError: If the conversation does not begin as its parts are rendered, or the template refuses it.
    """
    _check_is_fast(tokenizer)
    whole, spans = render(messages, tokenizer, template), []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _rendered_before(messages, number, tokenizer, template)
        with_it = render(messages[: number + 1], tokenizer, template)
        if not (with_it.startswith(before) and whole.startswith(with_it)):
            raise ValueError(
                f"the chat template renders the first {number + 1} messages of a conversation otherwise than the "
                "whole, so that it cannot be told what the assistant says in it. Give a template with "
                "{% generation %} around the assistant's turns, Chat(chat_template=...), or learn all that is said, "
                "Chat(train_on='all')."
            )
        spans.append((len(before), len(with_it)))
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = encoded["offset_mapping"]
    is_said = [any(start <= first < last <= end for start, end in spans) for first, last in offsets]
    return list(encoded["input_ids"]), is_said


def _rendered_before(messages: list[Message], number: int, tokenizer: Any, template: str | None) -> str:
    """Renders what a turn of the assistant goes on from."""
    if number:
        return render(messages[:number], tokenizer, template, for_answer=True)
    # No messages cannot be rendered: what comes before the first is up to where it begins as an answer does.
    first = render(messages[:1], tokenizer, template)
    opening = render(messages[:1], tokenizer, template, for_answer=True).removeprefix(first)
    return first[: first.index(opening) + len(opening)] if opening in first else first + opening


def _check_is_fast(tokenizer: Any) -> None:
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} does not tell which characters its tokens stand for: take a fast tokenizer, "
            "or learn all that is said, Chat(train_on='all')."
        )
