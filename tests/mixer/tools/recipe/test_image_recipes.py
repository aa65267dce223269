"""Recipes of chats with images, which become what TRL takes, wherever the images are kept."""

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image
from trl import SFTConfig, SFTTrainer

from tests.chats_of_images import model_of, pictures, processor_of
from tests.helpers import plain_options, weights_of
from tests.hub import running_hub
from tests.mixer.tools.recipe.test_trl_recipes import OF_TRL, built

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    model_of("llava").save_pretrained(folder)
    processor_of("llava").save_pretrained(folder)
    return folder


def recipe(folder: Path, base: Path, data: Mapping[str, Any], **training: Any) -> dict[str, Any]:
    options = {**OF_TRL, **plain_options(folder / "run"), **training}
    model = {"task": "image-text-to-text", "name_or_path": str(base)}
    streams = {name: own if "data" in own else {"data": own} for name, own in data.items()}
    return {"trainer": "sft", "model": model, "streams": streams, "training": options, "batch_size": 6}


def _png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, format="PNG")
    return content.getvalue()


def _said(row: dict[str, Any]) -> tuple[str, str]:
    user, assistant = row["messages"]
    return user["content"][-1]["text"], assistant["content"][0]["text"]


def forms(folder: Path, rows: datasets.Dataset) -> dict[str, dict[str, Any]]:
    """The same rows, of a question with an image before it and an answer, in many forms; gives each one's data."""
    (folder / "pictures").mkdir()
    found: dict[str, Rows] = {name: [] for name in ("parts", "openai", "tags", "alpaca", "single", "prompts")}
    for number, row in enumerate(rows):
        content, path, (ask, answer) = _png(row["images"][0]), f"pictures/{number}.png", _said(row)
        (folder / path).write_bytes(content)
        url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        own = {"path": path} if number % 2 else {"image": str(folder / path)}
        parts, reply = [{"type": "image", **own}, {"type": "text", "text": ask}], {"role": "assistant", "content": answer}
        found["parts"].append({"messages": [{"role": "user", "content": parts}, reply]})
        parts = [{"type": "image_url", "image_url": {"url": url}}, parts[1]]
        found["openai"].append({"messages": [{"role": "user", "content": parts}, reply]})
        turns = [{"from": "human", "value": f"<image>\n{ask}"}, {"from": "gpt", "value": answer}]
        found["tags"].append({"conversations": turns, "image": path, "id": number})
        found["alpaca"].append({"instruction": ask, "input": "", "output": answer, "images": [path]})
        found["single"].append({"messages": [{"role": "user", "content": ask}, reply], "image": path})
        found["prompts"].append({"prompt": ask, "completion": answer, "images": [path]})
    for name, own in found.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    rows.to_parquet(folder / "bytes.parquet")
    return {name: {"path": str(folder / f"{name}.jsonl")} for name in found} | {
        "bytes": {"path": str(folder / "bytes.parquet")}
    }


def test_images_become_what_trl_takes_wherever_they_are(tmp_path: Path, base: Path) -> None:
    rows = pictures(5, 1)
    trainer = built(recipe(tmp_path, base, forms(tmp_path, rows)))
    args = SFTConfig(**{**OF_TRL, **plain_options(tmp_path / "stock")})
    stock = SFTTrainer(model_of("llava"), args, train_dataset=rows, processing_class=processor_of("llava"))
    expected = stock.data_collator(list(rows))
    for stream in trainer.streams:
        batch = trainer.data_collator(stream.dataset[:] if isinstance(stream.dataset, list) else list(stream.dataset))
        assert torch.equal(batch["pixel_values"], expected["pixel_values"]), stream.name
        assert torch.equal(batch["input_ids"], expected["input_ids"]), stream.name
        if stream.name not in ("alpaca", "prompts"):  # of which only answers are learned
            assert torch.equal(batch["labels"], expected["labels"]), stream.name
        if stream.name != "bytes":  # files are read when they are drawn, and not copied
            stored = stream.dataset.with_format("arrow")[0]["images"][0][0].as_py()
            assert (stored["bytes"] is None) == (stream.name != "openai")
