"""Methods of a trainer are replaced by one function, in one table."""

import ast
from pathlib import Path

from accelerate import Accelerator
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import CallbackHandler

from mixer.run.replaced_methods import REPLACED

ROOT = Path(__file__).parents[3]
OWNERS = (Trainer, Accelerator, TrainerCallback, CallbackHandler)
# Functions that these objects hold, and what PEFT's model and `save_pretrained` look up.
FUNCTIONS = {"compute_loss_func", "compute_metrics", "data_collator", "load_adapter", "should_save_on_this_rank"}
METHODS = FUNCTIONS | {name for kind in OWNERS for name in dir(kind) if callable(getattr(kind, name))}
METHODS -= set(dir(object))
NAMES = {*METHODS, None}
_OWNERS = ("trainer", "accelerator", "callback", "handler", "model")  # ends of what these objects are called
# At construction, around that of TRL for images, for good.
FOR_GOOD = {("mixer/trainer/images.py", "data_collator")}
# Files that hold attributes by names in a dict: of the training arguments, and of the metrics of TRL.
BY_DICT = {"mixer/trainer/save.py", "mixer/run/trl_metrics.py"}


def _replaced(node: ast.AST) -> set[str | None]:
    """Names that a statement or call sets on such an object; `None` for those of a dict."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name == "attributes_held":
            return {keyword.arg for keyword in node.keywords}
        if name == "setattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return {str(node.args[1].value)}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    found = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Attribute)]
    others = [part for part in found if ast.unparse(part.value).endswith(_OWNERS)]
    return {part.attr for part in others if isinstance(part.ctx, ast.Store)}


def test_nothing_replaces_a_method_of_a_trainer_but_the_function_of_the_table() -> None:
    found, used = set(), set()
    for package in ("mixer", "replay", "tasks"):
        for file in (ROOT / package).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                names = _replaced(node) & NAMES
                found |= {(path, name) for name in names if name is not None or path not in BY_DICT}
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "replaced":
                    used |= {keyword.arg for keyword in node.keywords}
    assert found - {("mixer/run/replaced_methods.py", None)} - FOR_GOOD == set()
    # That of an evaluation is in a dict.
    assert used - {None} == REPLACED.keys() - {"compute_metrics"}
    assert REPLACED.keys() <= METHODS
