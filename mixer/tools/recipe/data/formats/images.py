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
        own = next((row[name] for name in COLUMNS if row.get(name) is not None), [])
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
                content += [{"type": "image"}, {"type": "text", "text": text.removeprefix("\n")}]
            content = [part for part in content if part.get("text") != ""]
        elif not are_parts(content) or not any(part["type"] in _KINDS for part in content):
            return turn
        return {**turn, name: [self._part(part) if part["type"] in _KINDS else part for part in content]}

    def _part(self, part: Mapping[str, Any]) -> dict[str, str]:
        own = [part[name] for name in _OF_PARTS if part.get(name) is not None]
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
        made = [{**own, "content": parts_of(own["content"])} if "content" in own else own for own in messages]
        if self._given and not self._found:
            asked = next((own for own in made if own["role"] == "user"), None)
            require(asked is not None, "images", "a message of the user, which they stand before", None)
            asked |= {"content": [self._part({}) for _ in self._given] + asked["content"]}
        return made

    def sources(self) -> list[Any]:
        """Returns the images as `datasets.Image` takes them.

        Raises:
            ValueError: If some have no place although others have, or one is no image, or a file that does not exist.
        """
        expected = f"{self._num_taken} images in the column, as many as places of such in the turns"
        require(self._num_taken == len(self._given), "images", expected, len(self._given))
        return [self._source(image) for image in self._found]

    def _source(self, image: Any) -> Any:
        if isinstance(image, Mapping):
            image = next((image[name] for name in ("bytes", "url", "path") if image.get(name) is not None), None)
        if isinstance(image, str) and image.startswith(_DATA_URL):
            try:
                image = base64.b64decode(image.partition(",")[2], validate=True)
            except binascii.Error as error:
                raise InvalidValueError(option="images", expected="base64", found=str(error)) from error
        if isinstance(image, bytes):
            return {"bytes": image, "path": None}
        if not isinstance(image, str) or is_url(image):
            expected = "images that are a path, a URL or bytes"
            require(isinstance(image, str) or hasattr(image, "getexif"), "images", expected, f"{image!r:.80}")
            return image
        path = (self._folder / image).absolute()
        hint = "Relative paths start from the folder of data.path: name another by image_folder of the format."
        require(path.is_file(), "images", "a file", str(path), hint)
        return str(path)


def parts_of(content: Any) -> Any:
    """Returns a text as parts, and parts as they are."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def undecoded(dataset: Any) -> Any:
    """Returns a data set that gives the bytes of images as they are stored, in place of pixels.

    Args:
        dataset: The data set.
    """
    if isinstance(dataset, datasets.IterableDataset):
        return dataset.decode(False) if dataset.features else dataset
    if not any(isinstance(_inner(kind), datasets.Image) for kind in dataset.features.values()):
        return dataset
    made = copy.deepcopy(dataset)
    for name, kind in dataset.features.items():
        if isinstance(_inner(kind), datasets.Image):
            stored = datasets.Image(decode=False)
            made.info.features[name] = stored if isinstance(kind, datasets.Image) else datasets.List(stored)
    return made


def _inner(kind: Any) -> Any:
    return getattr(kind, "feature", kind)
