import subprocess
import sys
from dataclasses import fields

import pytest
from transformers import TrainingArguments

from mixer.run.config import MixingConfig, MixingOptions
from mixer.tools.recipe.early_names import RECIPE, SECTIONS, fields_of
from mixer.tools.recipe.model import ModelRecipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.streams import StreamRecipe

CLASSES = {"model": [ModelRecipe], "streams": [StreamRecipe], "training": [MixingOptions, TrainingArguments]}


def test_the_names_are_those_of_the_dataclasses():
    assert set(fields_of(*RECIPE)) == {field.name for field in fields(Recipe)}
    for section, parts in SECTIONS.items():
        for part, kind in zip(parts, CLASSES[section], strict=True):
            assert set(fields_of(*part)) == {field.name for field in fields(kind)}, part
    assert {field.name for field in fields(MixingConfig)} == {
        name for part in SECTIONS["training"] for name in fields_of(*part)
    }


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("stream: {a: {}}", "stream"),
        ("streams: {web: {wieght: 2}}", "streams.web.wieght"),
        ("model: {taks: causal-lm}", "model.taks"),
        ("training: {max_stps: 3}", "training.max_stps"),
    ],
)
def test_a_wrong_name_is_told_before_torch_is_imported(tmp_path, text, field):
    (tmp_path / "recipe.yaml").write_text(text)
    code = (
        "import sys\nfrom mixer.tools.cli.entry import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n"
        "    print(end.code, sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code, "train", str(tmp_path / "recipe.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout.strip() == "2 []", ended
    assert ended.stderr.startswith(f"mixer train: {field}: There is no field ")
