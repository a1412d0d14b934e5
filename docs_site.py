"""Hooks for MkDocs, which builds the documentation site (mkdocs.yml).

The documents are written for a code host, where a link can lead to any file of the repository. The site has only the
documents, and copies of the files in conf/, deploy/ and examples/.  A link to a document leads to its page, a link to
one of these files leads to its copy, and a link to any other file becomes plain text.  If the words of a link are the
name of a document, the site shows the title of the page or section in their place.  The tables of options, keys,
commands, metrics and names are made from the code.
"""

import hashlib
import posixpath
import re
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_reference import anchor, completed
from tests.support.configuration_table import with_tables

# Documents outside of docs/, with the names of their pages.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "RELEASING.md": "RELEASING.md",
    "examples/README.md": "examples.md",
}
DOCUMENTS = {page: document for document, page in PAGES.items()}
# Folders whose files the site has, in `files/`, for readers without a checkout.
COPIED = ("conf", "deploy", "examples")
# Pages without a table of contents, because their tables are wide.
WIDE = ("configuration.md", "every-option.md", "every-metric.md")
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds to the site the documents that are not in docs/, and copies of the files in the folders of COPIED."""
    root = Path(config.docs_dir).parent
    for document, page in PAGES.items():
        files.append(File.generated(config, page, content=(root / document).read_text()))
    for path in (path for folder in COPIED for path in sorted((root / folder).rglob("*"))):
        if path.is_file() and path.suffix not in (".md", ".pyc"):
            files.append(File.generated(config, f"files/{path.relative_to(root)}", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    root = Path(config.docs_dir).parent
    document = DOCUMENTS.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if document == "docs/configuration.md":
        markdown = with_tables(markdown)
    if document == "examples/README.md":
        markdown = with_programs(markdown, root / "examples")
    return drawn(site_links(completed(markdown), document, root), document)


def with_programs(text: str, folder: Path) -> str:
    """Returns the text followed by the programs to which it links, because the site shows them nowhere else."""
    names = re.findall(r"\]\((\w+\.py)\)", text)
    for name in names:
        text = text.replace(f"]({name})", f"](#{anchor(name)})")
    return text + "".join(f"\n## {name}\n\n```python\n{(folder / name).read_text()}```\n" for name in names)


def drawn(text: str, document: str) -> str:
    """Returns the text, with each Mermaid diagram replaced by its committed picture.

    Without pictures, the theme would load Mermaid from the network. If the picture of a diagram is missing, its link is
    broken, which makes the build fail.
    """
    return MERMAID.sub(lambda found: f"![Diagram in {document}](diagrams/{picture(found[1])})", text)


def picture(diagram: str) -> str:
    """Returns the file name of a diagram's picture, which is a digest of the diagram, so that a changed diagram needs a
    new picture.
    """
    return f"{hashlib.sha256(diagram.encode()).hexdigest()[:12]}.svg"


def site_links(text: str, document: str, root: Path) -> str:
    """Returns the text of a document with links for the site, where `document` is its path in the repository.

    A link to a file that does not exist stays as it is, so that the build fails.
    """

    def link(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        name, separator, fragment = target.partition("#")
        if not name or "://" in target:
            return found[0]
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(document), name))
        if words in (name, linked) and (root / linked).exists() and linked.endswith(".md"):
            words = titles(root / linked).get(fragment, words)
        fragment = separator + fragment
        if linked in PAGES:
            return f"{image}[{words}]({PAGES[linked]}{fragment})"
        if linked.startswith("docs/"):
            return f"{image}[{words}]({linked.removeprefix('docs/')}{fragment})"
        if linked.split("/")[0] in COPIED and (root / linked).is_file():
            return f"{image}[{words}](files/{linked})"
        return words if (root / linked).exists() else found[0]

    return LINK.sub(link, text)


@cache
def titles(path: Path) -> dict[str, str]:
    """Returns the headings of a document by their link fragments, with the title under the empty fragment."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = [heading.replace("`", "") for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    return {anchor(heading): heading for heading in headings} | {"": headings[0]}
