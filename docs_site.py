"""Hooks of MkDocs for the documentation site (mkdocs.yml).

The documents are written for a code host, where a link may lead to any file of the checkout. The site has the documents
only: a link to a document leads to its page, and a link to another file becomes its text.  If the text of a link is the
name of a file, the site shows the title of the page or of the section instead.  Tables of options, keys, commands,
metrics and names are made from the code.
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

# Documents outside docs/, and their pages.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "RELEASING.md": "RELEASING.md",
    "examples/README.md": "examples.md",
}
DOCUMENTS = {page: document for document, page in PAGES.items()}
WIDE = ("configuration.md", "every-option.md", "every-metric.md")  # their tables need the room of the contents
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents outside docs/."""
    root = Path(config.docs_dir).parent
    for document, page in PAGES.items():
        files.append(File.generated(config, page, content=(root / document).read_text()))
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
    """The text with the programs to which it links behind it, because the site has no other place for them."""
    names = re.findall(r"\]\((\w+\.py)\)", text)
    for name in names:
        text = text.replace(f"]({name})", f"](#{anchor(name)})")
    return text + "".join(f"\n## {name}\n\n```python\n{(folder / name).read_text()}```\n" for name in names)


def drawn(text: str, document: str) -> str:
    """The text with each Mermaid diagram replaced by its committed picture.

    The theme would load Mermaid from the network. A diagram without a picture is a broken link, which fails the build.
    """
    return MERMAID.sub(lambda found: f"![Diagram in {document}](diagrams/{picture(found[1])})", text)


def picture(diagram: str) -> str:
    """The file name of a diagram's picture: a digest, so that a changed diagram needs a new picture."""
    return f"{hashlib.sha256(diagram.encode()).hexdigest()[:12]}.svg"


def site_links(text: str, document: str, root: Path) -> str:
    """The text of a document with links for the site; `document` is its path in the checkout.

    A link that leads to no file stays, so that the build fails for it.
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
        return words if (root / linked).exists() else found[0]

    return LINK.sub(link, text)


@cache
def titles(path: Path) -> dict[str, str]:
    """The headings of a document by their fragments; the empty fragment has the title."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = [heading.replace("`", "") for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    return {anchor(heading): heading for heading in headings} | {"": headings[0]}
