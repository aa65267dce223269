"""Settings without what is secret in them: rather too little is told than too much."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_SECRET = re.compile(
    r"(^|_)((api|access|private|auth)?(token|key|secret)|password|passwd|passphrase|pwd|credential|authorization)s?$"
)
# Names of tokens of a vocabulary and of columns, which end as secrets do.
_HARMLESS = re.compile(r"^((pad|eos|bos|unk|sep|cls|mask|image|audio)_token|(order|sort|label|image|text)_keys?)$")
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def redacted(value: Any, name: str = "") -> Any:
    """Hides values that are secret by their name, at any depth, and user names and passwords in addresses.

    Args:
        value: Plain data: mappings, lists, texts and numbers.
        name: What the value is called.

    Returns:
        The same with `***` in place of what is hidden; `None`, booleans, and numbers called tokens are no secrets.

    Example:
        >>> redacted({"hub_token": "abc", "max_tokens": 512, "pad_token": "<pad>", "url": "https://me:abc@host/x"})
        {'hub_token': '***', 'max_tokens': 512, 'pad_token': '<pad>', 'url': 'https://***@host/x'}
    """
    if _is_secret(value, name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: redacted(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part) for part in value]
    return _IN_ADDRESS.sub(HIDDEN, value) if isinstance(value, str) else value


def _is_secret(value: Any, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip()).replace("-", "_").lower()
    is_count = isinstance(value, int | float) and words.endswith("tokens")
    return bool(_SECRET.search(words)) and not _HARMLESS.match(words) and not is_count
