"""The recipes of well-known models, each trained in miniature: its architecture and its formats, on rows beside it."""

from pathlib import Path

import numpy as np
import pytest

from mixer import Ledger
from mixer.cli.entry import main
from mixer.recipe.fields import read_recipe_file
from mixer.recipe.recipe_files import filled_in
from tests.ranks.warm import some

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "recipes" / "models"
NAMES = sorted(path.stem for path in GALLERY.glob("*.yaml"))
FEW = ("modernbert_multi_task", "olmoe_pretraining", "wav2vec2_ctc")


@pytest.mark.parametrize("name", some(NAMES, FEW))
def test_a_recipe_trains_in_miniature_and_its_losses_are_by_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(ROOT)
    main(["train", f"recipes/models/{name}.yaml", "--tiny", "--training.output_dir", str(tmp_path)])
    rows = Ledger(tmp_path / "ledger").to_pandas()
    whole, written = read_recipe_file(str(GALLERY / f"{name}.yaml")), read_recipe_file(str(tmp_path / "recipe.yaml"))
    assert set(rows["stream"]) == set(whole["streams"]) == set(written["streams"])
    assert set(rows["step"]) == {1, 2}
    seen = rows.query("count > 0")
    assert set(seen["stream"]) == set(rows["stream"])
    assert np.isfinite(seen["loss"]).all()
    assert (seen["items"] > 0).all()
    assert filled_in((GALLERY / f"{name}.yaml").read_text())  # the recipe itself is complete, too
    assert "/" in whole["model"]["name_or_path"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["recipes/demo.yaml", "--tiny"], "--tiny: recipes/demo.yaml has no miniature"),
        (["--tiny", "recipes/models/qwen3_sft.yaml"], "--tiny: give the path of the recipe first"),
        (["recipes/models/none.yaml", "--tiny"], "there is no file"),
    ],
)
def test_what_has_no_miniature_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(["train", *words])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
