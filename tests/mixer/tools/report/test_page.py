import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from mixer.tools.records.runs import read_runs
from mixer.tools.report import write_report
from mixer.tools.report.plots import PLOTS
from mixer.tools.report.plots.losses import objective
from mixer.tools.report.plots.mixture import mixture
from tests.mixer.tools.report.ledgers import write_run


class Page(HTMLParser):
    """Gathers what a page refers to and says."""

    def __init__(self, path: Path):
        super().__init__()
        self.addresses: list[str] = []
        self.places: list[int] = []
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        self._open.append((tag, named))
        self.addresses += [str(named[name]) for name in ("src", "href", "srcset", "action") if name in named]
        if "data-figure" in named:
            self.places.append(int(str(named["data-figure"])))

    def handle_data(self, text: str) -> None:
        tag, named = self._open[-1] if self._open else ("", {})
        key = named.get("id") or tag
        self.texts[key] = self.texts.get(key, "") + text

    def figures(self) -> list[dict]:
        return json.loads(self.texts["figures"])


def test_every_plot_with_something_to_show_is_there_in_figures_and_in_words(tmp_path: Path) -> None:
    write_run(tmp_path / "first", measure_every=2)
    write_run(tmp_path / "second", ("code", "chat"))
    folders = [tmp_path / "first", tmp_path / "second"]
    page = Page(write_report(folders, tmp_path / "pages" / "both.html"))
    every = (objective, mixture, *PLOTS)
    plots = [plot for plot in (plot(read_runs(folders), 100) for plot in every) if plot.panels]
    assert len(plots) == len(PLOTS)  # of sets that differ there is no mean, and nothing was rewarded
    assert len(page.figures()) == sum(len(plot.panels) for plot in plots)
    assert page.places == list(range(len(page.figures())))
    assert f"heading-{len(plots) + 1}" not in page.texts
    for number, plot in enumerate(plots, start=1):
        assert page.texts[f"heading-{number}"].strip() == plot.title
        assert page.texts[f"caption-{number}"].strip() == plot.caption
        assert plot.caption.endswith(".")
    text = (tmp_path / "pages" / "both.html").read_text()
    assert "Not every run has every stream: math only in first; chat only in second." in text
    assert 'data-key="second"' in text


HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "<a href='javascript:alert(3)'>x</a>",
    "%{x}</extra>{{ 7 * 7 }}",
    "../../etc/passwd",
    "\u202e\n数学 $x^2$",
)


def test_names_from_the_data_cannot_break_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run", HOSTILE, num_steps=12, measure_every=1)
    path = write_report([tmp_path / "run"], tmp_path / "pages" / "report.html")
    assert path.stat().st_size < 3e6
    assert not list(path.parent.glob("*.tmp")) + list(path.parent.glob(".*.tmp"))
    text = path.read_text()
    assert not [name for name in HOSTILE[:3] if name in text]
    assert text.count("<script") == 3
    assert "<img" not in text
    page = Page(path)
    assert page.addresses == []
    assert not re.search(r"@import|url\(", page.texts["style"])
    assert page.texts["heading-1"].strip() == "Validation loss"
    # Plotly reads tags and links in what it writes beside lines and under the pointer, but not in the key of a line.
    for figure in page.figures():
        for trace in figure["data"]:
            trace.pop("legendgroup", None)
            trace.pop("hovertemplate", None)
        assert not re.search(r"[<$]|\\u003c", json.dumps(figure))
    keys = set(re.findall(r'data-key="([^"]*)"', text))
    assert {html.unescape(key) for key in keys} >= set(HOSTILE)


def test_what_stands_out_comes_first_and_of_many_streams_the_main_ones_are_drawn(tmp_path: Path) -> None:
    ledger = write_run(tmp_path / "first", is_done=False)
    write_run(tmp_path / "second", ("math", "code", *(f"stream-{number}" for number in range(38))), num_steps=8)
    ledger.record_evaluation(6, {"<b>": float("nan")})
    ledger.flush()
    text = write_report([tmp_path / "first", tmp_path / "second"], tmp_path / "page.html").read_text()
    assert "<strong>Not finite</strong> The loss was not finite: &lt;b&gt; in 1 evaluation, first at" in text
    assert text.count("No problems found in second.") == 1
    assert text.index("Not finite") < text.index("<h2>Summary</h2>")
    for said in ("<summary>Streams of second</summary>", "<details>", 'data-key="other streams"'):
        assert said in text
    assert "11 streams separately" in text
    assert text[text.index("<details>") :].count('<th scope="row">stream-') == 38
    assert "29 more, with smaller differences" in text


def test_a_price_leaves_no_green_word_and_the_objective_and_the_best_run_come_first(tmp_path: Path) -> None:
    for name, last in (("plain", {"math": 5.0, "code": 4.0}), ("auto", {"math": 4.0, "code": 5.0})):
        ledger = write_run(tmp_path / name, is_done=False)
        ledger.record_evaluation(6, last)
        ledger.finish()
        note = json.loads((path := tmp_path / name / "ledger" / "ledger.json").read_text())
        described = {"objective": {"targets": {"math": 1.0}}, "data_seed": 0, "mixing": name}
        path.write_text(json.dumps({**note, "run": described}))
    text = write_report([tmp_path / "plain", tmp_path / "auto"], tmp_path / "page.html").read_text()
    assert "higher than with plain on code (4.000 → 5.000, +1.000)" in text
    assert "No problems found" not in text
    assert 'class="calm"' not in text
    for heading in ("Results by stream", "<h2>Summary</h2>"):
        heads = text[text.index(heading) :]
        assert heads.index(">auto</th>") < heads.index(">plain</th>")
    page = Page(tmp_path / "page.html")
    assert page.texts["heading-1"].strip() == "Objective"
    lines = {line["name"]: line for line in page.figures()[0]["data"]}
    assert lines.keys() == {"plain", "auto"}
    assert html.unescape(text).index("<h3>math</h3>") < html.unescape(text).index("<h3>code</h3>")
