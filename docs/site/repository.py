"""The repository's own pages, at the places that they have in it, so that links between them stay as they are."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/*.md", "docs/*/*.md", "benchmarks/README.md", "recipes/README.md")
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def add_pages(files: Files, config: object) -> None:
    """Adds the pages, and the files of the repository that they link to, as they are.

    Args:
        files: The site's files.
        config: The site's configuration.
    """
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    linked = {(page.parent / target).resolve() for page in pages for target in _LINK.findall(page.read_text())}
    for path in [*pages, *sorted(linked - set(pages))]:
        if path.is_file() and path.is_relative_to(ROOT):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
