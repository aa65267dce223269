"""Links from the tutorials to their notebooks in Colab, once pyproject.toml says where the repository is."""

import re
import tomllib

from mkdocs.exceptions import PluginError
from repository import ROOT

_ON_GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")


def read_repository() -> str:
    """Reads where the repository is.

    Returns:
        `OWNER/NAME`, or nothing while it has no public address.

    Raises:
        PluginError: If the address is none that Colab opens.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository", "")
    found = _ON_GITHUB.fullmatch(address)
    if address and not found:
        raise PluginError(f"pyproject.toml: urls.Repository is {address!r}; Colab opens https://github.com/OWNER/NAME.")
    return found.group(1) if found else ""


def with_link(markdown: str, path: str, repository: str) -> str:
    """Adds the link below a tutorial's title.

    Args:
        markdown: A page.
        path: Where it is in the repository.
        repository: What `read_repository` gave.

    Returns:
        The page, as it is unless it is a tutorial and the repository is public.
    """
    notebook = ROOT / path.replace(".md", ".ipynb")
    if not repository or not path.startswith("docs/tutorials/") or not notebook.exists():
        return markdown
    address = f"https://colab.research.google.com/github/{repository}/blob/main/{notebook.relative_to(ROOT)}"
    package = f"adaptive-mixer[all] @ git+https://github.com/{repository}"
    title, _, text = markdown.partition("\n")
    said = f'[Open in Colab]({address}), and run `%pip install "{package}"` in a cell before the others.'
    return f"{title}\n\n{said}\n{text}"
