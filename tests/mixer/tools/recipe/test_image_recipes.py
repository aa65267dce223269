"""Recipes of chats with images, which become what TRL takes, wherever the images are kept."""

import base64
import io
import json
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image
from trl import SFTConfig, SFTTrainer

from tests.chats_of_images import model_of, pictures, processor_of
from tests.helpers import plain_options
from tests.mixer.tools.recipe.test_trl_recipes import OF_TRL, built
from tests.ranks.warm import some

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


def _said_by(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


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
        encoded = base64.b64encode(content).decode()
        own = [{"path": path}, {"image": str(folder / path)}, {"base64": encoded}][number % 3]
        parts, reply = [{"type": "image", **own}, {"type": "text", "text": ask}], _said_by("assistant", answer)
        found["parts"].append({"messages": [_said_by("user", parts), reply]})
        parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}, parts[1]]
        found["openai"].append({"messages": [_said_by("user", parts), reply]})
        turns = [{"from": "human", "value": f"<image>{ask}"}, {"from": "gpt", "value": answer}]
        found["tags"].append({"conversations": turns, "image": path, "id": number})
        found["alpaca"].append({"instruction": ask, "input": "", "output": answer, "images": [path]})
        found["single"].append({"messages": [_said_by("user", ask), reply], "image": path})
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
        batch = trainer.data_collator(list(stream.dataset))
        assert torch.equal(batch["pixel_values"], expected["pixel_values"]), stream.name
        assert torch.equal(batch["input_ids"], expected["input_ids"]), stream.name
        if stream.name not in ("alpaca", "prompts"):  # of which only answers are learned
            assert torch.equal(batch["labels"], expected["labels"]), stream.name
        if stream.name != "bytes":  # files are read when they are drawn, and not copied
            stored = stream.dataset.with_format("arrow")[0]["images"][0][0].as_py()
            assert (stored["bytes"] is None) == (stream.name != "openai")


TEXT: Rows = [{"messages": [_said_by("user", f"w{n}"), _said_by("assistant", "w3")]} for n in range(6)]


def write(path: Path, rows: Rows) -> dict[str, str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path)}


def test_a_recipe_of_images_and_texts_trains_and_evaluates(tmp_path: Path, base: Path) -> None:
    data = {"seen": {"data": forms(tmp_path, pictures(12, 1))["parts"], "validation": 2}}
    data["text"] = {"data": write(tmp_path / "text.jsonl", TEXT), "validation": 2}
    trainer = built({**recipe(tmp_path, base, data, max_steps=2), "mixing": {"seen": 2, "text": 1}})
    trainer.train()
    rows = trainer.ledger.to_pandas().groupby("stream")[["count", "tokens"]].sum()
    assert rows["count"].to_dict() == {"seen": 8, "text": 4}
    assert rows["tokens"]["text"] == 4 * 5
    metrics = trainer.evaluate()
    assert {"eval_seen_loss", "eval_text_loss"} <= metrics.keys()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the folder."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_image_behind_a_url_is_fetched_when_its_row_is_read(tmp_path: Path, base: Path, served: str) -> None:
    images = [row["images"][0] for row in pictures(2, 1)]
    rows = [{"messages": TEXT[0]["messages"], "image": f"{served}/{number}.png"} for number in range(2)]
    (tmp_path / "0.png").write_bytes(_png(images[0]))  # the first row shows what the stream has
    trainer = built(recipe(tmp_path, base, {"seen": write(tmp_path / "rows.jsonl", rows)}))
    (tmp_path / "1.png").write_bytes(_png(images[1]))
    assert trainer.streams[0].dataset[1]["images"][0].tobytes() == images[1].tobytes()


def _asking(content: Any, **columns: Any) -> Rows:
    return [{"messages": [_said_by("user", content), TEXT[0]["messages"][1]], **columns}]


_PLACE = {"type": "image"}
_WORDS = {"type": "text", "text": "w1"}
WRONG: dict[str, tuple[Rows, dict[str, Any], list[str]]] = {
    "no file": (_asking("w1", image="none.png"), {}, ["streams.odd", "images", "none.png", "image_folder", "row 0"]),
    "a place too many": (_asking([_PLACE, _PLACE, _WORDS], images=["a.png"]), {}, ["streams.odd", "images"]),
    "an image too many": (_asking("<image> w1", images=["a.png", "a.png"]), {}, ["streams.odd", "images", "2"]),
    "no image": (_asking("w1", image=3), {}, ["streams.odd", "images", "3"]),
    "no base64": (_asking("w1", image="data:image/png;base64,?"), {}, ["streams.odd", "base64"]),
    "a video": (_asking([{"type": "video"}, _WORDS]), {}, ["streams.odd", "video"]),
    "another format": (TEXT, {"format": "Chat"}, ["streams.odd", "image-text-to-text"]),
    "texts": ([{"text": "w1"}], {}, ["'odd'", "'text'", "messages"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_images_are_named(case: str, tmp_path: Path, base: Path) -> None:
    rows, options, named = WRONG[case]
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    odd = {"data": write(tmp_path / "odd.jsonl", rows), **options}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the words are below
        built(
            recipe(tmp_path, base, {"odd": odd, "seen": write(tmp_path / "seen.jsonl", _asking("w1", image="a.png"))})
        )
    assert [word for word in named if word not in str(caught.value)] == []


@pytest.mark.parametrize(("trainer", "option"), [(None, "trainer"), ("dpo", "model.task")])
def test_images_are_learned_by_sft_trainer_alone(trainer: Any, option: str, tmp_path: Path, base: Path) -> None:
    content = recipe(tmp_path, base, {"text": write(tmp_path / "text.jsonl", TEXT)})
    if trainer is None:
        content["training"] = plain_options(tmp_path)
    with pytest.raises(ValueError, match=option):
        built({**content, "trainer": trainer})


def test_images_without_a_model_that_sees_are_refused(tmp_path: Path, base: Path) -> None:
    content = recipe(tmp_path, base, {"seen": write(tmp_path / "seen.jsonl", _asking("w1", image="a.png"))})
    with pytest.raises(ValueError, match="image"):
        built({**content, "model": {"name_or_path": str(base)}})


def test_paths_may_start_from_another_folder(tmp_path: Path, base: Path) -> None:
    (tmp_path / "else").mkdir()
    Image.new("RGB", (8, 8), (9, 8, 7)).save(tmp_path / "else" / "a.png")
    data = write(tmp_path / "seen.jsonl", _asking("w1", image="a.png"))
    own = {"class_path": "Dialogue", "init_args": {"image_folder": str(tmp_path / "else")}}
    trainer = built(recipe(tmp_path, base, {"seen": {"data": data, "format": own}}))
    assert trainer.streams[0].dataset[0]["images"][0].getpixel((0, 0)) == (9, 8, 7)


@pytest.mark.parametrize("name", some(["bytes", "parts", "tags"], ["bytes"]))
def test_rows_with_images_may_be_streamed(name: str, tmp_path: Path, base: Path) -> None:
    rows = pictures(6, 1)
    data = {**forms(tmp_path, rows)[name], "streaming": True}
    content = recipe(tmp_path, base, {"seen": data, "text": write(tmp_path / "text.jsonl", TEXT)}, max_steps=2)
    trainer = built({**content, "mixing": "Uniform"})
    trainer.train()
    made = list(trainer.streams[0].dataset)
    assert [row["images"][0].tobytes() for row in made] == [row["images"][0].tobytes() for row in rows]
    assert trainer.ledger.to_pandas()["count"].sum() == 12


def test_an_image_that_is_lost_may_be_skipped(tmp_path: Path, base: Path) -> None:
    data = {"seen": {"data": forms(tmp_path, pictures(6, 1))["tags"], "on_sample_error": "skip"}}
    content = recipe(tmp_path, base, data, max_steps=1, max_skipped_share=0.5)
    trainer = built(content)
    (tmp_path / "pictures" / "3.png").unlink()
    trainer.train()
    assert trainer.ledger.to_pandas()[["count", "skipped"]].to_numpy().tolist() == [[6, 1]]
