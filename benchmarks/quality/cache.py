"""What a run of `benchmarks.quality` is, and where its result is kept: a file that goes by all that matters."""

import ast
import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.quality.mixtures import Mixture
from mixer.policies import Policy
from mixer.policies.registry import built_in_policies

PROTOCOL = 2  # to be raised when results of earlier runs do not count any more


@cache
def code_of(class_name: str) -> str:
    """Gives a digest of a policy's code, so that results of a policy that was changed since do not count.

    Args:
        class_name: The class, among the built-in policies.

    Returns:
        A digest of it and the classes that it comes from, without comments and docstrings. What they call is left out:
        who changes that has to raise `PROTOCOL`.
    """
    owners = [owner for owner in built_in_policies()[class_name].__mro__ if issubclass(owner, Policy)]
    trees = [ast.parse(inspect.getsource(owner)) for owner in owners if owner is not Policy]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return hashlib.blake2b("".join(map(ast.dump, trees)).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Run:
    """What a run is; another one has another file.

    Args:
        mixture: The mixture.
        name: Name of the competitor.
        class_name: Class of its policy.
        settings: Arguments of the policy, plain data.
        seed: Seed of the weights and of the order of the samples.
        options: Options of the trainer, plain data.
    """

    mixture: Mixture
    name: str
    class_name: str
    settings: Mapping[str, Any]
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, but the name, which is only what it is called."""
        own = {name: value for name, value in asdict(self).items() if name != "name"}
        own["mixture"] = self.mixture.content
        own["code"] = code_of(self.class_name)
        plain: dict[str, Any] = json.loads(json.dumps({"protocol": PROTOCOL, **own}))
        return plain

    def path(self, folder: Path) -> Path:
        """Names the file of the result.

        Args:
            folder: Where results are kept.

        Returns:
            The file.
        """
        digest = hashlib.blake2b(json.dumps(self.key(), sort_keys=True).encode(), digest_size=6).hexdigest()
        called = "".join(sign if sign.isalnum() else "-" for sign in self.name)
        return folder / self.mixture.name / f"{called}-{self.seed}-{digest}.json"

    def result(self, folder: Path) -> dict[str, Any] | None:
        """Reads the result of an earlier run.

        Args:
            folder: Where results are kept.

        Returns:
            The result, or `None` if there is none.
        """
        path = self.path(folder)
        if not path.is_file():
            return None
        found: dict[str, Any] = json.loads(path.read_text())
        return found if found["key"] == self.key() else None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is never there in part.

    Args:
        path: The file; its folder is made.
        content: What it holds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
