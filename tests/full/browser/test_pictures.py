"""Pictures of pages for the documentation."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.tools.pictures import Picture, main, take
from mixer.analysis.report import write_report
from tests.mixer.analysis.report.ledgers import write_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_run(folder / "run")
    return write_report([folder / "run"])


def test_a_section_is_shown_in_few_bytes_and_the_same_each_time(browser: Any, page: Path, tmp_path: Path) -> None:
    first, second = (take(browser, page, Picture("one", "Mixture"), tmp_path / name) for name in ("a", "b"))
    assert first == tmp_path / "a" / "one.png"
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) < 80_000
    colours = np.asarray(Image.open(io.BytesIO(first.read_bytes())).convert("RGB"))
    assert colours.shape[1] == 1500
    assert (colours[0, 0] == 255).all()
    assert len(np.unique(colours.reshape(-1, 3), axis=0)) > 10  # areas are painted, not letters alone


def test_the_top_is_shown_on_dark(browser: Any, page: Path, tmp_path: Path) -> None:
    path = take(browser, page, Picture("top", None, width=390, height=500, scheme="dark"), tmp_path)
    image = Image.open(path)
    assert image.size == (585, 750)
    assert np.asarray(image.convert("L"))[0, 0] < 40


def test_what_cannot_be_shown_is_named(
    browser: Any, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"There is no page .*nowhere.html: write it with mixer report"):
        take(browser, tmp_path / "nowhere.html", Picture("one", None), tmp_path)
    with pytest.raises(ValueError, match=r"report.html has no section 'Cost', only \['Loss', 'Mixture'"):
        take(browser, page, Picture("one", "Cost"), tmp_path)
    monkeypatch.setattr("benchmarks.tools.pictures.MOST_BYTES", 1_000)
    with pytest.raises(ValueError, match=r"one.png has [\d,]+ bytes, more than 1,000: show less of the page"):
        take(browser, page, Picture("one", "Mixture"), tmp_path)


def test_pictures_need_a_browser(monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    pytest.importorskip("playwright", reason="the package `playwright` is not installed")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match="There is no browser: install one of chromium, "):
        main([str(page), str(page)])
