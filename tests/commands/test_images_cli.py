"""The recipe of the page on images, by the commands."""

import base64
import io
import json
import re
from pathlib import Path

import pytest

from mixer import Ledger
from tests.chats_of_images import model_of, pictures, processor_of
from tests.commands.recipes import ROOT, Runs

pytestmark = pytest.mark.full
PAGE = (ROOT / "docs" / "vision_language.md").read_text()


def test_the_recipe_of_the_page_is_inspected_and_trained(tmp_path: Path, monkeypatch, printed: Runs) -> None:
    monkeypatch.chdir(tmp_path)
    model_of("llava").save_pretrained("my-model")
    processor_of("llava").save_pretrained("my-model")
    Path("data/cats").mkdir(parents=True)
    rows = pictures(12, 1)
    rows[0]["images"][0].save("data/cats/1.png")
    lines = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
    for number, row in enumerate(rows):
        content = io.BytesIO()
        row["images"][0].save(content, format="PNG")
        url = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
        lines.append(json.dumps({"conversations": [{"from": "human", "value": f"<image>w{number}"}], "image": url}))
    # Each file has rows of one shape.
    of_shape = {shape: [line for line in lines if f'"{shape}"' in line] for shape in ("messages", "conversations")}
    Path("data/pictures.jsonl").write_text("\n".join(of_shape["messages"] * 10) + "\n")
    Path("data/shared.jsonl").write_text("\n".join(of_shape["conversations"]) + "\n")
    rows.to_parquet("data/scans.parquet")
    text = {"messages": [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]}
    Path("data/texts.jsonl").write_text(f"{json.dumps(text)}\n" * 8)
    (recipe,) = re.findall(r"<!-- recipe: images -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    Path("recipe.yaml").write_text(
        recipe.replace("  texts:", "  shared: {data: {path: data/shared.jsonl}}\n  texts:", 1)
    )
    mixing = ["--mixing", "Uniform", "--training.bf16", "false", "--training.use_cpu", "true"]
    assert "pictures" in printed("inspect", "recipe.yaml", *mixing)
    assert "pictures, first sample" in printed("train", "recipe.yaml", *mixing, "--dry_run")
    printed("train", "recipe.yaml", *mixing)
    counts = Ledger(tmp_path / "run").to_pandas().groupby("stream")["count"].sum()
    assert counts.to_dict() == {"pictures": 4, "scans": 4, "shared": 4, "texts": 4}
