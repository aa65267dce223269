"""Recipes that lie in a run's folder have no package imported."""

import sys
from pathlib import Path

import pytest

from mixer.recipe.written_recipe import filled_in

_RECIPE = "model: {config: {}}\nstreams: {a: {factory: x.y}}\ntraining: {output_dir: o}\n"


@pytest.mark.parametrize(
    "line",
    [
        "mixing: marks_itself.Policy",
        "mixing: {class_path: marks_itself.Policy}",
        "methods: [{class_path: marks_itself.Method}]",
        "methods: [marks_itself.Method]",
    ],
)
def test_a_class_of_a_package_that_is_not_loaded_is_refused_before_it_is(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "marks_itself.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\nclass Policy: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"marks_itself\.\w+ is of a package that is not loaded here"):
        filled_in(_RECIPE + line)
    assert "marks_itself" not in sys.modules
    assert not (tmp_path / "mark").exists()


def test_names_in_fields_of_texts_are_none_of_a_class() -> None:
    assert filled_in(_RECIPE + "mixing: Uniform")["streams", "a", "factory"] == "x.y"
