"""Files of configurations: YAML, JSON, TOML, the arguments of a shell script, and the card of a model."""

import itertools
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mixer.tools.recipe.given import read_recipe_file
from mixer.tools.recipe.yaml_files import load_yaml
from mixer.utils.errors import require, wrong_value

_ARGUMENT = re.compile(r"--([a-zA-Z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"(\w+)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?:\[@\])?(?::?-([^}]*))?\}|\$(\w+)")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")
# Of a model card of sentence-transformers: what stands before the text, and its list of hyperparameters.
_HEADER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_HYPERPARAMETERS = re.compile(r"#### Non-Default Hyperparameters\n(.*?)(?:\n#|\Z)", re.DOTALL)
_HYPERPARAMETER = re.compile(r"(?m)^- `(\w+)`: (.*)$")


def read(path: str) -> Mapping[str, Any]:
    """Reads a configuration; what form it has is told by the end of its name.

    Raises:
        ValueError: If it cannot be read, or is no mapping of keys to values.
        FileNotFoundError: If there is no such file.
    """
    suffix = Path(path).suffix.lower()
    expected = "a file of data; torchtitan writes its configuration as one with --debug.save_config_file config.json"
    require(suffix != ".py", path, expected, "a program")
    content: Mapping[str, Any]
    if (parse := _PARSERS.get(suffix)) is None or not Path(path).is_file():
        content = read_recipe_file(path)
    else:
        try:
            content = parse(Path(path).read_text(encoding="utf-8"))
        except (ValueError, yaml.YAMLError) as error:
            raise wrong_value(path, f"cannot be read as {suffix}: {error}") from None
    require(bool(content), path, "a mapping of keys to values, a configuration", content)
    return content


def _arguments(text: str) -> dict[str, Any]:
    """Reads `--name value ...` of the commands of a script; its own variables and lists are filled in."""
    lines = _COMMENT.sub(r"\1", text).replace("\\\n", " ").replace("\n", " ; ").replace("2>&1", "")
    lexer = shlex.shlex(lines, posix=True, punctuation_chars="();|&<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    known: dict[str, list[str]] = {}
    commands: list[str] = []
    words = iter(list(lexer))
    for word in words:
        assigned = _ASSIGNED.fullmatch(word)
        if assigned is None:
            commands += _filled(word, known)
        elif assigned[2] or next(words, ";") != "(":
            known[assigned[1]] = _filled(assigned[2], known)
        else:
            listed = itertools.takewhile(")".__ne__, words)
            earlier = known.get(assigned[1], []) if "+=" in word else []
            known[assigned[1]] = [*earlier, *(part for own in listed if own != ";" for part in _filled(own, known))]
    return _named(commands)


def _filled(word: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the words that a word with variables stands for; arguments in one word are separate ones."""
    whole = _VARIABLE.fullmatch(word)
    if whole is not None and (whole[1] or whole[3]) in known:
        filled = list(known[whole[1] or whole[3]])
    else:
        value = lambda found: " ".join(known.get(found[1] or found[3], [found[2] or found[0]]))  # noqa: E731
        filled = [_VARIABLE.sub(value, word)]
    return [part for one in filled for part in (one.split() if one.startswith("--") else [one])]


def _named(words: Iterable[str]) -> dict[str, Any]:
    """Returns the values of arguments by name: `True` without one, a list of several; the last ones if given again."""
    found: dict[str, list[Any]] = {}
    values: list[Any] = []  # of the last argument; those of commands before it are nobody's
    for word in words:
        if argument := _ARGUMENT.fullmatch(word):
            name = argument[1].replace("-", "_")
            if name in found:
                found[f"{name}, given before"] = found.pop(name)
            values = found[name] = [] if argument[2] is None else [_value(argument[2])]
        elif set(word) <= set("();|&<>"):
            values = []
        else:
            values.append(_value(word))
    return {name: (own or [True])[0] if len(own) < 2 else own for name, own in found.items()}


def _card(text: str) -> dict[str, Any]:
    """Reads the model, the data sets, the tags and the hyperparameters of a card."""
    header, parameters = _HEADER.match(text), _HYPERPARAMETERS.search(text)
    content: Any = load_yaml(header[1]) if header else {}
    found = _HYPERPARAMETER.findall(parameters[1]) if parameters else []
    chosen = {key: content[key] for key in ("base_model", "datasets", "tags") if key in content}
    if isinstance(base := chosen.get("base_model"), list) and len(base) == 1:
        chosen["base_model"] = base[0]
    return {**chosen, **{name: _value(value) for name, value in found}}


def _value(text: str) -> Any:
    try:
        return load_yaml(text)
    except (ValueError, yaml.YAMLError):
        return text


_PARSERS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {".toml": tomllib.loads, ".sh": _arguments, ".md": _card}
