"""The documentation's site in a real browser, on a telephone and on a desk, light and dark."""

import os
import re
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.full.browser.opened import PALE

ROOT = Path(__file__).parents[3]
SITE, MKDOCS = ROOT / "site", ROOT / ".venv-docs/bin/mkdocs"
SOURCES = ("*.md", "mkdocs.yml", "docs/**/*.*", "recipes/*.md", "benchmarks/*.md", "*/**/*.py")
NARROW, WIDE = 390, 1440
MAX_MENU_ENTRIES = 12
NUM_REFERENCE_PAGES = 8  # the largest of some 200 that are made by one template

_LAID_OUT = """() => {
    const boxes = (element) => element.getBoundingClientRect();
    const covers = (button, code) => boxes(button).bottom > boxes(code).top && getComputedStyle(button).opacity !== "0";
    const codes = [...document.querySelectorAll("pre:has(.md-code__nav)")];
    return {
        overflows: document.documentElement.scrollWidth > document.documentElement.clientWidth,
        untold: [...document.images].filter((image) => !image.alt.trim()).map((image) => image.src),
        covered: codes.filter((pre) => covers(pre.querySelector("nav"), pre.querySelector("code"))).length,
    };
}"""


def _is_stale(index: Path) -> bool:
    sources = (path for pattern in SOURCES for path in ROOT.glob(pattern) if ".venv" not in path.parts[len(ROOT.parts)])
    return not index.exists() or max(path.stat().st_mtime for path in sources) > index.stat().st_mtime


@pytest.fixture(scope="module")
def site() -> Path:
    if _is_stale(SITE / "index.html"):
        if not MKDOCS.exists():
            pytest.skip("the site is older than its sources, and `make docs` has not set up .venv-docs")
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        subprocess.run([MKDOCS, "build", "--quiet"], cwd=ROOT, env=environment, check=True)
    return SITE


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    """A tab with a touch screen, where buttons that elsewhere come up with the mouse are always there."""
    context = browser.new_context(offline=True, has_touch=True, is_mobile=True)
    try:
        yield context.new_page()
    finally:
        context.close()


def test_every_page_fits_is_told_in_words_and_has_contrast(tab: Any, site: Path) -> None:
    reference = sorted((site / "reference").rglob("*.html"), key=lambda path: path.stat().st_size)
    written = set(site.rglob("*.html")) - set(reference)
    assert len(written) > 40
    faults = {}
    for path in [*sorted(written), *reference[-NUM_REFERENCE_PAGES:]]:
        tab.set_viewport_size({"width": NARROW, "height": 844})
        tab.goto(path.as_uri(), wait_until="domcontentloaded")
        found = {f"pale, {scheme}": tab.evaluate(PALE, scheme) for scheme in ("default", "slate")}
        found |= {f"{name} at {NARROW}": fault for name, fault in tab.evaluate(_LAID_OUT).items()}
        tab.set_viewport_size({"width": WIDE, "height": 844})
        found |= {f"{name} at {WIDE}": fault for name, fault in tab.evaluate(_LAID_OUT).items()}
        faults |= {(str(path.relative_to(site)), name): fault for name, fault in found.items() if fault}
    assert faults == {}
    entries = tab.locator(".md-nav--primary > .md-nav__list > li")
    assert 0 < entries.count() <= MAX_MENU_ENTRIES


def test_a_page_opened_as_a_file_can_be_searched(tab: Any, site: Path) -> None:
    tab.set_viewport_size({"width": WIDE, "height": 844})
    tab.goto((site / "docs/continual.html").as_uri())
    tab.locator(".md-search__input").click()
    tab.keyboard.type("ReplayBuffer")
    tab.wait_for_selector(".md-search-result__item a", state="attached", timeout=20_000)
    found = [link.get_attribute("href") for link in tab.locator(".md-search-result__item a").all()]
    assert any("ReplayBuffer.html" in link for link in found)


def test_names_with_an_example_have_pages_of_their_own(site: Path) -> None:
    pages = {path.relative_to(site / "reference").as_posix() for path in (site / "reference").rglob("*.html")}
    assert {"mixer/trainer/MixingMixin.html", "mixer/MixingConfig.html", "replay/methods/DERPlusPlus.html"} <= pages


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    files = {str(path) for path in site.rglob("*")}
    pages = {path: Path(path).read_text() for path in files if path.endswith(".html") and not path.endswith("404.html")}
    ids = {path: set(re.findall(r"\b(?:id|name)=\"?([^\s\">]+)", page)) for path, page in pages.items()}
    broken = []
    for path, page in pages.items():
        for link in set(re.findall(r"<(?:a|link|script|img)\b[^>]*?\b(?:href|src)=\"?([^\s\">]+)", page)):
            address, _, anchor = unescape(unquote(link)).partition("#")
            if re.match(r"\w+:", address):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), address)) if address else path
            if target not in files or (anchor and target in ids and anchor not in ids[target]):
                broken.append((path, link))
    assert broken == []
