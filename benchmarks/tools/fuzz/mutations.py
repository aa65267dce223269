"""Valid data, changed a little or thoroughly, by a seeded generator."""

import copy
import json
from random import Random
from typing import Any

AWFUL_NAMES = (
    *(
        "..",
        ".",
        "../../x",
        "/etc/x",
        "a/b",
        "a\\b",
        "\x00",
        "CON",
        "nul.txt",
        "x" * 5000,
        "\u202eabc",
        "a\nb",
        "\x1b[31m",
    ),
    *(
        "</script><script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "[red]a[/red]",
        "=1+1",
        "{{7*7}}",
        "${x}",
    ),
    *("%s%n", "a|b", "\ud800", "", " ", "数学", "__class__", "class_path", "`id`", "$(id)", "';--", "\t", "NaN"),
)
AWFUL_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**63 - 1, 2**63, 2**70, -(2**70), 10**400, 1e18, 0.5, -0.5),
    *(1e-320, 1e308, -1e308, "", "x", "nan", "inf", "-1", [], {}, [[]], [None], [1e18], {"": 0}, [[[[]]]], "1", [-1]),
    *({"class_path": "os.system", "init_args": {"command": "true"}}, {"no_data": 1}, {"float": "nan"}),
)


def changed_data(content: Any, random: Random, most: int = 3) -> Any:
    """Changes plain data at some places.

    Args:
        content: The data; they stay as they are.
        random: What is changed.
        most: How many changes at most.

    Returns:
        Other data.
    """
    changed = copy.deepcopy(content)
    for _ in range(random.randint(1, most)):
        places = list(_places(changed))
        if not places:
            return random.choice(AWFUL_VALUES)
        whole, key = random.choice(places)
        _change(whole, key, random)
    return changed


def _places(content: Any) -> Any:
    """Gives each place of a value, as what holds it and its key."""
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield content, key
            yield from _places(content[key])


def _change(whole: Any, key: Any, random: Random) -> None:
    value, kind = whole[key], random.randrange(8)
    if kind == 0:
        del whole[key]
    elif kind == 1 and isinstance(whole, dict):
        whole[random.choice(AWFUL_NAMES)] = whole.pop(key)
    elif kind == 2 and isinstance(whole, list):
        whole.insert(key, random.choice([*whole, *AWFUL_VALUES]))
    elif kind <= 4 and isinstance(value, int | float) and not isinstance(value, bool):
        whole[key] = random.choice([value + 1, value - 1, -value, value * 2, 0.5, 0, value + 2**40])
    elif kind == 5:
        whole[key] = random.choice(AWFUL_NAMES)
    elif kind == 6:
        whole[key] = [value]
    else:
        whole[key] = copy.deepcopy(random.choice(AWFUL_VALUES))


def changed_bytes(content: bytes, random: Random, most: int = 4) -> bytes:
    """Changes bytes: flips, cuts, repeats, overwrites.

    Args:
        content: The bytes.
        random: What is changed.
        most: How many changes at most.

    Returns:
        Other bytes.
    """
    changed = bytearray(content)
    for _ in range(random.randint(1, most)):
        place, kind = random.randrange(len(changed) + 1), random.randrange(6)
        if kind == 0:
            del changed[place:]
        elif kind == 1:
            del changed[place : place + random.randint(1, 16)]
        elif kind == 2:
            changed[place:place] = changed[place : place + random.randint(1, 64)]
        elif kind == 3:
            changed[place : place + 8] = random.choice(
                (b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", b"\x01" + b"\0" * 7)
            )
        elif place < len(changed):
            changed[place] ^= 1 << random.randrange(8)
    return bytes(changed)


def changed_json(content: Any, random: Random) -> bytes:
    """Writes changed data as JSON, and now and then JSON that is none.

    Args:
        content: The data.
        random: What is changed.

    Returns:
        The text.
    """
    text = json.dumps(changed_data(content, random)).encode()
    kind = random.randrange(40)
    if kind == 0:
        return b"[" * 100_000
    if kind == 1:
        return b'{"format": ' + b"9" * 5_000 + b"}"
    if kind == 2:
        return text.replace(b"1", b"NaN").replace(b"2", b"-Infinity")
    if kind == 3:
        return text[:-1] + b"," + text[1:]
    return changed_bytes(text, random) if kind < 10 else text


def changed_text(text: str, random: Random) -> str:
    """Changes a text by lines and characters.

    Args:
        text: The text.
        random: What is changed.

    Returns:
        Another text.
    """
    lines = text.split("\n")
    for _ in range(random.randint(1, 4)):
        place, kind = random.randrange(len(lines)), random.randrange(7)
        if kind == 0:
            del lines[place : place + random.randint(1, 3)]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(place, lines[random.randrange(len(lines))])
        elif kind == 2:
            lines[place] = " " * random.randrange(6) + lines[place].strip()
        elif kind == 3:
            name, _, _ = lines[place].partition(":")
            lines[place] = f"{name}: {json.dumps(random.choice(AWFUL_VALUES))}"
        elif kind == 4:
            lines[place] = lines[place].replace(
                ": ", random.choice([": &a ", ": *a ", ": !!python/name:os.system ", ":"])
            )
        elif kind == 5:
            name, _, value = lines[place].partition(":")
            lines[place] = f"{name[: len(name) - len(name.lstrip())]}{json.dumps(random.choice(AWFUL_NAMES))}:{value}"
        else:
            found = changed_bytes(lines[place].encode("utf-8", "surrogatepass"), random, 1)
            lines[place] = found.decode("utf-8", "replace")
    return "\n".join(lines)
