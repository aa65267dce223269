"""What the pages say of the code, and whether their links lead somewhere."""

import re
from pathlib import Path

import pytest

from mixer.policies.registry import built_in_policies

PAGE = Path(__file__).parents[2] / "docs" / "choosing_a_policy.md"


@pytest.mark.parametrize("name", built_in_policies())
def test_the_page_that_helps_to_choose_knows_every_policy(name: str) -> None:
    if name in ("Scheduled", "Function"):  # weights that their user gives, as `Fixed` does
        return
    assert re.search(rf"`(MixingTrainer\(mixing=)?{name}\b", PAGE.read_text())


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "docs/choosing_a_policy.md",
        "docs/data.md",
        "docs/clusters.md",
        "docs/engines.md",
        "benchmarks/README.md",
    ],
)
def test_links_within_the_documentation_lead_somewhere(path: str) -> None:
    page = PAGE.parents[1] / path
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"(?m)^#+ (.+)$", linked.read_text())
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, target
