"""Folders that are called after something which may have any name."""

import hashlib
import re

# Device names of Windows, whatever follows a dot.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_REFUSED = '<>:"/\\|?*%'
_MOST_BYTES = 180


def folder_name(name: str) -> str:
    """Names a folder after something: one step down from where it stands, on every file system.

    Args:
        name: What it is named after.

    Returns:
        The name itself, where it can be a folder's; else with `%` and the bytes of what cannot stand in one, and cut
        with a digest behind where it is too long. Two names never share a folder.

    Example:
        >>> folder_name("01-math"), folder_name(".."), folder_name("a/b")
        ('01-math', '%2E%2E', 'a%2Fb')
    """
    edges = {len(name) - 1} if name.endswith((".", " ")) else set()
    if not name.strip(".") or _RESERVED.fullmatch(name):
        edges.add(0)
    kept = "".join(
        _escaped(character) if place in edges or character in _REFUSED or not character.isprintable() else character
        for place, character in enumerate(name)
    )
    if len(kept.encode()) <= _MOST_BYTES:
        return kept or "%"
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{kept.encode()[:_MOST_BYTES].decode('utf-8', 'ignore')}%{digest}"


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
