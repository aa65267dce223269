"""Every page that the project writes, in a real browser: drawn whole, readable, and told in words too."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mixer.tools.report import write_report
from mixer.tools.report.page import write_page
from tasks.metrics.score_matrix import SCORES_FILE, ScoreMatrix
from tasks.tools.report.kind import continual_run, write_scores
from tests.full.browser.opened import PALE, Opened, opened
from tests.mixer.tools.report.ledgers import write_run
from tests.tasks.tools.report.runs import train

NARROW, MIDDLE, WIDE = 390, 820, 1400
PAPER_WIDTH_PIXELS = 680
PAGES = ("measured run", "two runs", "continual run", "scores")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    write_run(folder / "first", ("math", "</script>", "a stream with a rather long name"), 40, measure_every=2)
    write_run(folder / "second", ("math", "code"), num_steps=30, unsized=("code",))
    continual = train(folder / "continual", "reservoir")
    return {
        "measured run": write_report([folder / "first"], folder / "one.html"),
        "two runs": write_report([folder / "first", folder / "second"], folder / "two.html"),
        "continual run": write_page(folder / "continual.html", continual_run().contents([continual])),
        "scores": write_scores({"run": ScoreMatrix.from_file(continual / SCORES_FILE)}, continual / "scores.html"),
    }


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest, browser: Any, pages: dict[str, Path]) -> Iterator[Opened]:
    """Opens each page on a telephone first; it is made wider then, and stays open for all tests of it."""
    with opened(browser, pages[request.param], NARROW) as page:
        yield page


@pytest.mark.parametrize("width", [NARROW, MIDDLE, WIDE])
def test_every_plot_is_drawn_and_fits_at_every_width(page: Opened, width: int) -> None:
    page.resize(width)
    painted = page.painted()
    assert painted
    assert all(panel["painted"] == panel["expected"] > 0 for panel in painted), painted
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
    edges = page.tab.evaluate("[...document.querySelectorAll('.main-svg')].map((s) => s.getBoundingClientRect().right)")
    assert max(edges) <= width
    assert not page.tab.locator("#notice").is_visible()
    assert page.problems == []


def test_it_needs_no_network_and_no_other_file(page: Opened) -> None:
    assert [address for address in page.requests if not address.startswith(("data:", "blob:"))] == [page.tab.url]


def test_a_label_with_figures_comes_up_in_every_plot(page: Opened) -> None:
    page.resize(WIDE)
    for number in range(len(page.painted())):
        assert re.search(r"\d", page.hover(number)), number
    assert page.problems == []


def test_every_plot_is_told_in_words(page: Opened) -> None:
    for section in page.tab.locator("section:has([data-figure])").all():
        heading, caption = section.locator("h2").inner_text(), section.locator("p").first.inner_text()
        plot = section.get_by_role("img", name=f"{heading} {caption}", exact=True)
        assert plot.count() == 1
        assert caption.endswith(".")


def test_keys_hide_lines_and_show_them_again(page: Opened) -> None:
    for section in page.tab.locator("section:has(.key)").all():
        names = section.locator(".key button").evaluate_all("(all) => all.map((one) => one.dataset.key)")
        before = _keys_drawn(section)
        assert before <= set(names)
        button = section.locator(".key button").first
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert _keys_drawn(section) == before - {names[0]}
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert _keys_drawn(section) == before


def _keys_drawn(section: Any) -> set[str]:
    return set(
        section.locator("[data-figure]").evaluate_all(
            """(panels) => panels.flatMap((panel) => panel.calcdata.map(([first]) => first.trace)
                .filter((trace) => trace.visible === true).map((trace) => trace.legendgroup))"""
        )
    )


def test_it_can_be_read_on_dark_and_on_light(page: Opened) -> None:
    for scheme in ("dark", "light"):
        page.tab.emulate_media(color_scheme=scheme)
        page.tab.wait_for_function(
            """() => getComputedStyle(document.querySelector("[data-figure] .xtick text")).fill
                === getComputedStyle(document.body).color"""
        )
        colours = page.colours()
        assert (_lightness(colours["ground"]) < 0.1) == (scheme == "dark")
        assert _contrast(colours["ground"], colours["text"]) > 7
        assert page.tab.evaluate(PALE, scheme) == {}


def test_it_is_printed_dark_on_white_as_wide_as_paper(page: Opened) -> None:
    page.resize(WIDE)
    page.tab.emulate_media(color_scheme="dark")
    page.tab.evaluate(
        """() => addEventListener("beforeprint", () => {
            const panels = [...document.querySelectorAll("[data-figure]")];
            window.printed = panels.map((panel) => [panel._fullLayout.width, panel._fullLayout.font.color]);
        })"""
    )
    paper = page.tab.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    printed = page.tab.evaluate("window.printed")
    assert len(printed) == len(page.painted())
    assert all(width <= PAPER_WIDTH_PIXELS and colour == "#1c1f24" for width, colour in printed)
    page.tab.emulate_media(color_scheme="light")
    page.resize(WIDE)  # as before: it is wide again
    assert page.problems == []


def test_the_page_says_what_it_needs_where_scripts_are_off(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(pages["scores"].as_uri())
    assert "The plots need JavaScript" in tab.locator("#notice").inner_text()
    assert tab.get_by_role("cell", name="3 of 3").count() == 1
    context.close()


def _lightness(colour: str) -> float:
    """Gives the relative luminance, as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first: str, second: str) -> float:
    low, high = sorted((_lightness(first), _lightness(second)))
    return (high + 0.05) / (low + 0.05)
