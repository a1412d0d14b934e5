"""Draws the documents' Mermaid diagrams for the site: `python -m tests.support.diagrams` writes docs/diagrams/*.svg.

The command needs Chromium, and npm, which fetches Mermaid.  The pictures are committed, so `./run docs` does not need
these programs.
"""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from testbed.processes import ROOT

MERMAID = "mermaid@11.16.0"
FOLDER = ROOT / "docs" / "diagrams"


def diagrams() -> list[str]:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        found for path in documents for found in re.findall(r"^```mermaid\n(.*?)^```$", path.read_text(), re.M | re.S)
    ]


def main() -> None:
    from playwright.sync_api import sync_playwright

    from docs_site import picture

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=folder, check=True)
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            script = archive.extractfile("package/dist/mermaid.min.js").read().decode()
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        with playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
            page = browser.new_page()
            page.add_script_tag(content=script)
            FOLDER.mkdir(exist_ok=True)
            for path in FOLDER.glob("*.svg"):
                path.unlink()
            for diagram in diagrams():
                path = FOLDER / picture(diagram)
                path.write_text(page.evaluate(DRAW, [diagram, f"d{path.stem}"]) + "\n")
                print(path)


# The picture is an XML file of its own with a white background, so that it can be read in a dark theme, too.
DRAW = """async ([diagram, id]) => {
    mermaid.initialize({startOnLoad: false, theme: "neutral", fontFamily: "sans-serif"});
    const {svg} = await mermaid.render(id, diagram);
    const element = new DOMParser().parseFromString(svg, "text/html").querySelector("svg");
    const [, , width, height] = element.getAttribute("viewBox").split(" ");
    element.setAttribute("width", width);
    element.setAttribute("height", height);
    element.style.background = "white";
    return new XMLSerializer().serializeToString(element);
}"""

if __name__ == "__main__":
    main()
