"""Images of chats: where the rows say that they stand, and what a stored sample has of them."""

import base64
import binascii
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets

from mixer.tools.recipe.data.formats.base import Row
from mixer.tools.recipe.data.formats.conversation import Message, are_parts
from mixer.tools.recipe.data.suffixes import is_url
from mixer.utils.errors import InvalidValueError, require

COLUMNS = ("images", "image")
FEATURE = datasets.List(datasets.Image())  # of samples: read where they are drawn
_KINDS = ("image", "image_url")  # of parts; the latter as OpenAI writes them
_OF_PARTS = ("image", "path", "url", "image_url", "bytes", "base64")
_TAG = "<image>"  # in a text, as LLaVA and LLaMA-Factory write the place of an image
_DATA_URL = "data:"


class RowImages:
    """The images of a row, in the order of their places in its turns.

    Args:
        row: The row.
        folder: Where relative paths start.
    """

    def __init__(self, row: Row, folder: str):
        own: Any = next((row[name] for name in COLUMNS if row.get(name) is not None), [])
        self._given = [image for image in (own if isinstance(own, list) else [own]) if image is not None]
        self._folder, self._num_taken, self._found = Path(folder), 0, list[Any]()

    def placed(self, turn: Any) -> Any:
        """Returns a turn in whose content images are parts without a source, which is kept here."""
        name = "value" if isinstance(turn, Mapping) and "value" in turn else "content"
        content = turn.get(name) if isinstance(turn, Mapping) else None
        if isinstance(content, str) and self._given and _TAG in content:
            first, *others = content.split(_TAG)
            content = [{"type": "text", "text": first}]
            for text in others:
                content += [{"type": "image"}, {"type": "text", "text": text}]
            content = [part for part in content if part.get("text") != ""]
        if not isinstance(content, list) or not are_parts(content):
            return turn
        return {**turn, name: [self._part(part) if part["type"] in _KINDS else part for part in content]}

    def _part(self, part: Mapping[str, Any]) -> dict[str, str]:
        own = [part[name] for name in _OF_PARTS if part.get(name) is not None]
        if own and own[0] == part.get("base64"):
            own = [f"{_DATA_URL},{own[0].rpartition(',')[2]}"]
        if not own:
            place = part.get("index", self._num_taken)  # some data sets number them
            own, self._num_taken = self._given[place : place + 1], self._num_taken + 1
        expected = "an image for each place of one, in the part itself or the column"
        require(bool(own), "images", expected, f"{len(self._given)} in the column")
        self._found.append(own[0])
        return {"type": "image"}

    def in_parts(self, messages: list[Message]) -> list[Message]:
        """Returns messages with contents in parts, as TRL renders them; images without a place come first in them.

        Raises:
            ValueError: If there are such images, and no message of the user.
        """
        made = [
            {**own, "content": [{"type": "text", "text": own["content"]}]}
            if isinstance(own.get("content"), str)
            else own
            for own in messages
        ]
        if self._given and not self._found:
            asked: Message = next((own for own in made if own["role"] == "user"), {"content": []})
            require("role" in asked, "images", "a message of the user, which they stand before", None)
            asked["content"] = [self._part({}) for _ in self._given] + asked["content"]
        return made

    def sources(self) -> list[Any]:
        """Returns the images as `datasets.Image` stores them.

        Raises:
            ValueError: If some have no place although others have, or one is no image, or a file that does not exist.
        """
        expected = f"{self._num_taken} images in the column, as many as places of such in the turns"
        require(self._num_taken == len(self._given), "images", expected, len(self._given))
        return [self._source(image) for image in self._found]

    def _source(self, image: Any) -> dict[str, Any]:
        if isinstance(image, Mapping):
            image = next((image[name] for name in ("bytes", "url", "path") if image.get(name) is not None), None)
        if isinstance(image, str) and image.startswith(_DATA_URL):
            try:
                image = base64.b64decode(image.partition(",")[2], validate=True)
            except binascii.Error as error:
                raise InvalidValueError(option="images", expected="base64", found=str(error)) from error
        if isinstance(image, bytes):
            return {"bytes": image, "path": None}
        require(isinstance(image, str), "images", "images that are a path, a URL or bytes", f"{image!r:.80}")
        if is_url(image):
            return {"bytes": None, "path": image}
        path = (self._folder / image).absolute()
        hint = "Relative paths start from the folder of data.path: name another by image_folder of the format."
        require(path.is_file(), "images", "a file", str(path), hint)
        return {"bytes": None, "path": str(path)}


def undecoded(dataset: Any) -> Any:
    """Returns a data set that gives the bytes of images as they are stored, in place of pixels.

    Args:
        dataset: The data set.
    """
    kinds = {name: kind for name, kind in (dataset.features or {}).items() if _is_image(getattr(kind, "feature", kind))}
    stored = datasets.Image(decode=False)
    made = copy.deepcopy(dataset) if kinds and isinstance(dataset, datasets.Dataset) else dataset
    for name, kind in kinds.items():
        own = stored if _is_image(kind) else datasets.List(stored)
        if isinstance(made, datasets.Dataset):
            made.info.features[name] = own  # as cast_column does for single images; it would copy those in lists
        else:
            made = made.cast_column(name, own)
    return made


def decoded(samples: datasets.IterableDataset) -> datasets.IterableDataset:
    """Returns streamed samples with images as pixels, which `datasets` leaves as they were made."""
    features: Mapping[str, Any] = samples.features or {}
    return samples.map(_decoded, features=samples.features) if features.get("images") == FEATURE else samples


def _decoded(sample: dict[str, Any]) -> dict[str, Any]:
    kind = FEATURE.feature
    return {**sample, "images": [kind.decode_example(kind.encode_example(image)) for image in sample["images"]]}


def _is_image(kind: Any) -> bool:
    return isinstance(kind, datasets.Image)
