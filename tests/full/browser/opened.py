"""Pages as a reader has them: opened in a real browser, without a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HEIGHT_PIXELS = 900

# How many marks the browser has painted in each panel, and how many it should have: one a line or heat map with points.
_PAINTED = """() => [...document.querySelectorAll("[data-figure]")].map((panel) => {
    const isMap = ([first]) => first.trace.type === "heatmap";
    const hasPoints = (points) => points.some((point) => point.x !== undefined && point.x !== false);
    const expected = panel.calcdata.filter((points) => isMap(points) || hasPoints(points)).length;
    const maps = [...panel.querySelectorAll(".hm image")].filter((image) => image.getBoundingClientRect().width > 0);
    return { expected, painted: panel.querySelectorAll(".scatterlayer .trace").length + maps.length };
})"""
# Where a point in the middle of a line, or a cell of a heat map, is painted, in pixels of the window.
_POINT = """(panel) => {
    panel.scrollIntoView({ block: "center" });
    const { xaxis, yaxis } = panel._fullLayout;
    const box = panel.querySelector(".nsewdrag").getBoundingClientRect();
    const points = panel.calcdata.find(([first]) => first.x !== undefined && first.x !== false);
    const { z, x, y } = points[0];
    if (!z) return [box.x + xaxis.c2p(points[Math.floor(points.length / 2)].x), box.y + box.height / 2];
    const row = z.findIndex((cells) => cells.some((cell) => Number.isFinite(cell)));
    const column = z[row].findIndex((cell) => Number.isFinite(cell));
    const middle = (edges, place) => (edges[place] + edges[place + 1]) / 2;
    return [box.x + xaxis.c2p(middle(x, column)), box.y + yaxis.c2p(middle(y, row))];
}"""
# Texts, in a scheme of the site, with less contrast than 4.5: WCAG 2.2, 1.4.3. A colour may have a transparency.
PALE = """(scheme) => {
    document.body.dataset.mdColorScheme = scheme;
    document.body.insertAdjacentHTML("beforeend", "<style>* { transition: none !important }</style>");
    const paint = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const read = new Map();
    const parts = (colour) => {
        if (!read.has(colour)) {
            paint.clearRect(0, 0, 1, 1);
            paint.fillStyle = colour;
            paint.fillRect(0, 0, 1, 1);
            read.set(colour, paint.getImageData(0, 0, 1, 1).data);
        }
        return read.get(colour);
    };
    const over = (top, below) => [0, 1, 2].map((i) => (top[i] * top[3] + below[i] * (255 - top[3])) / 255);
    const grounds = new Map([[null, [255, 255, 255]]]);
    const ground = (element) => {
        if (!grounds.has(element)) {
            const own = parts(getComputedStyle(element).backgroundColor);
            grounds.set(element, own[3] === 255 ? own : over(own, ground(element.parentElement)));
        }
        return grounds.get(element);
    };
    const linear = (part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) + 0.05;
    const pale = {};
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const isSeen = element.checkVisibility({ opacityProperty: true }) && !element.closest("noscript, svg");
        if (!texts.currentNode.data.trim() || !isSeen) continue;
        const below = ground(element);
        const [a, b] = [luminance(over(parts(getComputedStyle(element).color), below)), luminance(below)];
        const contrast = Math.max(a / b, b / a);
        if (contrast < 4.5) pale[`${element.tagName} ${texts.currentNode.data.trim()}`] = contrast.toFixed(2);
    }
    return pale;
}"""


class Opened:
    """A page in a tab of its own.

    Args:
        tab: The tab, of Playwright.
        path: The page's file.
    """

    def __init__(self, tab: Any, path: Path):
        self.tab, self.problems, self.requests = tab, list[str](), list[str]()
        tab.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-drawn]")

    def resize(self, width: int) -> None:
        """Makes the window wider or narrower, and waits until the plots have followed."""
        self.tab.set_viewport_size({"width": width, "height": HEIGHT_PIXELS})
        self.tab.wait_for_function(
            """() => [...document.querySelectorAll("[data-figure]")].every(
                (panel) => Math.abs(panel._fullLayout.width - panel.clientWidth) <= 1)"""
        )

    def painted(self) -> list[dict[str, int]]:
        """Gives for each panel how many lines and heat maps there should be, and are."""
        return self.tab.evaluate(_PAINTED)

    def hover(self, number: int) -> str:
        """Points at something in a panel, and gives what the label there says."""
        panel = self.tab.locator("[data-figure]").nth(number)
        x, y = panel.evaluate(_POINT)
        self.tab.mouse.move(x - 2, y)
        self.tab.mouse.move(x, y, steps=3)
        label = panel.locator(".hoverlayer text").first
        label.wait_for(timeout=5_000)
        return " ".join(panel.locator(".hoverlayer text").all_text_contents())

    def colours(self) -> dict[str, str]:
        """Gives the colours of the ground, of the page's text and of a plot's."""
        return self.tab.evaluate(
            """() => {
                const fill = getComputedStyle(document.querySelector("[data-figure] .xtick text")).fill;
                const { color, backgroundColor } = getComputedStyle(document.body);
                return { ground: backgroundColor, text: color, plot: fill };
            }"""
        )


@contextmanager
def opened(browser: Any, path: Path, width: int, **options: Any) -> Iterator[Opened]:
    """Opens a page offline.

    Args:
        browser: The browser, of Playwright.
        path: The page's file.
        width: Width of the window in pixels.
        **options: Further options of the browser's context, such as `color_scheme`.

    Yields:
        The page, all of it drawn.
    """
    context = browser.new_context(viewport={"width": width, "height": HEIGHT_PIXELS}, offline=True, **options)
    context.set_default_timeout(60_000)
    try:
        yield Opened(context.new_page(), path)
    finally:
        context.close()
