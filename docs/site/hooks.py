"""What the site has beside docs/: the pages of the repository's root, and the addresses in pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from os.path import relpath
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
URLS = PROJECT["urls"]

#: README is the first page, and the list of all pages another one.
NAMES = {"docs/index.md": "all-pages.md", "README.md": "index.md"} | {
    path.name: path.name.lower() for path in ROOT.glob("*.md") if path.name != "README.md"
}
#: Each page's title and text, for those who read Markdown: language models, and people with curl.
MARKDOWN: dict[str, tuple[str, str]] = {}
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#]*)")
PICTURE = re.compile(r'(?<=src="|set=")docs/')


def on_config(config: MkDocsConfig) -> None:
    config.site_url = URLS["Documentation"]
    # No `repo_url`: for that of a GitHub repository each page would ask GitHub for its stars.
    config.extra["social"] = [{"icon": "material/git", "link": URLS["Source"], "name": "Source"}]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.remove(files.src_uris["index.md"])
    for path, name in NAMES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    MARKDOWN[page.file.src_uri] = (page.title or "", text := _with_links(markdown, page))
    return text


def _with_links(markdown: str, page: Page) -> str:
    sources = {name: path for path, name in NAMES.items()}
    source = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def here(link: re.Match[str]) -> str:
        """The link's target as a page of the site; a file that is none of its pages is in the repository."""
        target = (source.parent / link[1]).resolve().relative_to(ROOT).as_posix()
        if target not in NAMES and not (target.startswith("docs/") and target.endswith((".md", ".svg", ".png"))):
            return f"{URLS['Source']}/blob/main/{target}"
        return relpath(NAMES.get(target, target.removeprefix("docs/")), Path(page.file.src_uri).parent)

    return PICTURE.sub("", LINK.sub(here, markdown))


def on_post_build(config: MkDocsConfig) -> None:
    """From a disk the search reads its index as a script."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text('utf-8')}", "utf-8")
    _write_markdown(Path(config.site_dir))


def _write_markdown(site: Path) -> None:
    """A twin of each page, ``once.md`` beside ``once.html``, and their list as https://llmstxt.org has it."""
    for path, (_, text) in MARKDOWN.items():
        (site / path).write_text(text, "utf-8")
    base = URLS["Documentation"].rstrip("/")
    pages = [f"- [{title}]({base}/{path})" for path, (title, _) in MARKDOWN.items()]
    lines = ["# distlock_web", "", f"> {PROJECT['description']}", "", "## Pages", "", *pages, ""]
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")


def on_page_content(html: str, **_: object) -> str:
    """Docstrings have the roles of Sphinx: ``:meth:`acquire```."""
    return re.sub(r":(?:attr|class|exc|func|meth|mod):(?=<code>)", "", html)
