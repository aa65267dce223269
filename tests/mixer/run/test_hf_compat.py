"""What is relied on in the Trainer is written down, and there."""

import ast
import inspect
import re
from pathlib import Path

import transformers
from transformers import Trainer, trainer as trainer_module

import mixer
from mixer import MixingTrainer
from mixer.run import hf_compat

ROOMS = [Path(mixer.__file__).parent / room for room in ("run", "checkpoint", "losses", "measurements", "trainer")]
FILES = [path for room in ROOMS for path in room.rglob("*.py")]
_ASSIGNED = set(re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(trainer_module)))
_RELIED_ON = hf_compat.OVERRIDDEN | hf_compat.USED
_PRIVATE = {name for name in _ASSIGNED | set(dir(Trainer)) if re.match("_[a-z]", name)}


def test_the_installed_trainer_has_every_name() -> None:
    assigned = set(re.findall(r"self\.(\w+)", inspect.getsource(trainer_module)))
    missing = {name: why for name, why in _RELIED_ON.items() if not hasattr(Trainer, name) and name not in assigned}
    assert not missing, (
        f"transformers {transformers.__version__} has renamed or removed names of the Trainer that "
        f"mixer/run/hf_compat.py lists (checked with {hf_compat.CHECKED_WITH}): {missing}. "
        "Find what took their place."
    )


def test_the_names_that_are_overridden_at_most_twelve_and_used_are_those_of_the_lists() -> None:
    own = [kind for kind in MixingTrainer.__mro__ if kind.__module__.startswith("mixer.")]
    overridden = {name for kind in own for name in vars(kind) if name in dir(Trainer) and re.match("_[a-z]", name)}
    assert overridden == set(hf_compat.OVERRIDDEN)
    assert len(overridden) <= 12
    used = {
        node.attr
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in _PRIVATE
    }
    listed = {name for name in hf_compat.USED if name.startswith("_")}
    assert used - set(hf_compat.OVERRIDDEN) == listed


def test_only_one_file_reads_what_is_private_to_others() -> None:
    told = [path.name for path in FILES for line in path.read_text().splitlines() if "SLF001" in line]
    assert sorted(told) == ["failures.py", "hf_compat.py", "step.py"]  # of torch, of the Trainer, of accelerate
