"""Pictures of pages for the README and the documentation.

After `make demo demo-continual`: `python -m benchmarks pictures runs/demo/report.html runs/continual/report.html`
"""

import argparse
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.tools.browser import launched

FOLDER = Path("docs/pictures")
MOST_BYTES = 80_000
_SCALE = 1.5  # pixels of a picture for one of the page: letters stay sharp where it is shown smaller
_NUM_COLOURS = 96  # what a page of lines and letters needs; a third of the bytes of all colours
_MARGIN_PIXELS = 12


@dataclass(frozen=True)
class Picture:
    """A part of a page.

    Args:
        name: Name of its file, without the ending.
        heading: Heading of the section that is shown; `None` for the top of the page.
        width: Width of the window in pixels.
        height: Greatest height of the picture, in pixels of the page.
        scheme: `"light"` or `"dark"`.
    """

    name: str
    heading: str | None
    width: int = 1000
    height: int = 900
    scheme: str = "light"


OF_RUNS = (Picture("report", None, height=620),)
OF_CONTINUAL_RUNS = (
    Picture("continual-forgetting", "Forgetting curves: accuracy on each task as others are learnt"),
    Picture("continual-classes", "Classes in the memory"),
)


def take(browser: Any, page: Path, picture: Picture, folder: Path) -> Path:
    """Takes a picture.

    Args:
        browser: The browser, of Playwright.
        page: The page's file.
        picture: What is shown of it.
        folder: Where the picture goes.

    Returns:
        The picture's file, the same bytes each time on the same machine.

    Raises:
        ValueError: If there is no page or no such section, or the picture has too many bytes.
    """
    if not page.is_file():
        raise ValueError(f"There is no page {page}: write it with mixer report.")
    context = browser.new_context(
        viewport={"width": picture.width, "height": 900}, device_scale_factor=_SCALE, color_scheme=picture.scheme
    )
    tab = context.new_page()
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("html[data-drawn]")
    shot = tab.screenshot(full_page=True, clip=_clip(tab, picture, page))
    context.close()
    return _write(shot, folder / f"{picture.name}.png")


def _clip(tab: Any, picture: Picture, page: Path) -> dict[str, float]:
    if picture.heading is None:
        return {"x": 0, "y": 0, "width": picture.width, "height": picture.height}
    drawn = tab.locator("section:has([data-figure])").all()
    sections = {section.locator("h2").inner_text(): section for section in drawn}
    if picture.heading not in sections:
        raise ValueError(f"{page} has no section {picture.heading!r}, only {list(sections)}.")
    box = sections[picture.heading].evaluate(
        "(one) => { const box = one.getBoundingClientRect(); return { y: box.y + scrollY, height: box.height }; }"
    )
    height = min(box["height"] + 2 * _MARGIN_PIXELS, picture.height)
    return {"x": 0, "y": box["y"] - _MARGIN_PIXELS, "width": picture.width, "height": height}


def _write(shot: bytes, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    image.quantize(_NUM_COLOURS, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)
    if (num_bytes := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{path} has {num_bytes:,} bytes, more than {MOST_BYTES:,}: show less of the page.")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Takes all pictures and prints what they weigh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="Page of plain runs, as mixer report writes it.")
    parser.add_argument("continual", type=Path, help="Page of continual runs with a memory.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"Where pictures go. Default: {FOLDER}.")
    given = parser.parse_args(arguments)
    with launched() as browser:
        for page, pictures in ((given.runs, OF_RUNS), (given.continual, OF_CONTINUAL_RUNS)):
            for picture in pictures:
                path = take(browser, page, picture, given.folder)
                print(f"{path}: {path.stat().st_size:,} bytes")
