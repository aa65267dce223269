"""A chat template by its text, its file, a tokenizer that has it, or its name in TRL."""

import importlib.util
from pathlib import Path

from transformers import AutoTokenizer

from mixer.utils.errors import wrong_value
from mixer.utils.text import did_you_mean


def chat_template_of(given: str) -> str:
    """Returns a chat template.

    Args:
        given: The template in Jinja, the path of a file with one, a tokenizer's folder or name on the hub
            (`org/name`), or the name of a template that TRL has.

    Raises:
        ValueError: If there is no such template.
        OSError: If a tokenizer cannot be loaded.
    """
    if "{{" in given or "{%" in given:
        return given
    path, known = Path(given), _of_trl()
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if given in known:
        return known[given].read_text(encoding="utf-8")
    if path.is_dir() or ("/" in given and not path.suffix and not path.is_absolute()):
        template = AutoTokenizer.from_pretrained(given).chat_template
        if not isinstance(template, str):
            text = f"The tokenizer {given!r} has none, or several."
            raise wrong_value("chat_template", text, found=given)
        return template
    text = f"There is no file {str(path.absolute())!r}, and TRL has no template {given!r}.{did_you_mean(given, known)}"
    raise wrong_value("chat_template", f"{text} A template in Jinja has {{{{ or {{%.", found=given)


def _of_trl() -> dict[str, Path]:
    spec = importlib.util.find_spec("trl")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "chat_templates"
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.jinja"))}
