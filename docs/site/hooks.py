"""What mkdocs calls while it builds the site: adds the repository's pages and the reference, looks at what came out."""

import re

import colab
import llms
import reference
import repository
import tables
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_PACKAGES = reference.read_packages()
_NAVIGATION: list[Navigation] = []
_REPOSITORY = colab.read_repository()
_MENU_ENTRY_OF_MODULE = re.compile(r"(<span class=\"md-ellipsis\">\s*)(\w+(?:\.\w+)+)(?=\s*</span>)")
_LOADED_FROM_ELSEWHERE = re.compile(r"<(?:(?:script|img|iframe)\b[^>]*\bsrc|link\b[^>]*\bhref)=\"?(?:https?:)?//")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the reference into the navigation, in the place that is kept for it.

    Args:
        config: The site's configuration.

    Returns:
        The same.
    """
    (pages,) = (section["Reference"] for section in config.nav if "Reference" in section)
    (api,) = (page for page in pages if "API" in page)
    api["API"] = reference.navigation(_PACKAGES)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the repository's pages and those of the reference.

    Args:
        files: The site's files.
        config: The site's configuration.

    Returns:
        The same files, and those.
    """
    repository.add_pages(files, config)
    reference.add_pages(_PACKAGES, files, config)
    return files


def on_env(env: object, config: MkDocsConfig, files: Files) -> None:
    """Writes the site's contents for language models, once all pages are read.

    Args:
        env: The templates.
        config: The site's configuration.
        files: The site's files.
    """
    agents = next(file for file in files.documentation_pages() if file.src_uri == "docs/agents.md")
    text = llms.text(config.site_name, config.site_description or "", _NAVIGATION[0].items, agents.url)
    files.append(File.generated(config, "llms.txt", content=text))


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keeps the navigation.

    Args:
        nav: The navigation.
        config: The site's configuration.
        files: The site's files.

    Returns:
        The same.
    """
    _NAVIGATION[:] = [nav]
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links tutorials to Colab.

    Args:
        markdown: The page.
        page: Where it is in the site.
        config: The site's configuration.
        files: The site's files.

    Returns:
        The page.
    """
    return colab.with_link(markdown, page.file.src_uri, _REPOSITORY)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names the columns of tables in their cells.

    Args:
        html: The page's content.
        page: Where it is in the site.
        config: The site's configuration.
        files: The site's files.

    Returns:
        The content.
    """
    return tables.with_named_cells(html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Breaks modules in the menu after dots; looks whether a page needs a network: the site is to be read without one.

    Args:
        output: The page.
        page: Where it is in the site.
        config: The site's configuration.

    Returns:
        The page.

    Raises:
        PluginError: If it does.
    """
    found = _LOADED_FROM_ELSEWHERE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads something over the network: {found.group()}")
    return _MENU_ENTRY_OF_MODULE.sub(lambda entry: entry[1] + entry[2].replace(".", ".<wbr>"), output)
