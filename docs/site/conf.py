"""Configuration of the documentation site. `make docs` writes build/docs/index.html.

The source folder is the checkout. A link to a file outside of docs/ then works on the site as it does in the checkout.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

CHECKOUT = Path(__file__).resolve().parents[2]
MEASUREMENTS = [path.parent.name for path in sorted(CHECKOUT.glob("experiments/results/*/README.md"))]

# Caption of the navigation -> its pages.
NAVIGATION = {
    "Tutorials": [
        "docs/tutorials/reviewer",
        "docs/tutorials/engineer",
        "docs/tutorials/administrator",
        "docs/tutorials/your-own-program",
    ],
    "How-to guides": [
        "docs/how-to/submit",
        "docs/how-to/be-notified",
        "docs/how-to/retry",
        "docs/how-to/read-results",
        "docs/how-to/compare-clusters",
        "docs/how-to/hand-over-results",
        "docs/how-to/search",
        "docs/how-to/accept-a-machine",
        "docs/how-to/add-a-site",
        "docs/how-to/programs",
        "docs/how-to/add-an-experiment",
        "docs/how-to/add-a-program",
        "docs/how-to/add-a-log-format",
        "docs/troubleshooting",
    ],
    "Reference": [
        "docs/reference/commands",
        "docs/reference/cli",
        "docs/reference/experiments",
        "docs/reference/profiles",
        "docs/reference/exit-codes",
        "docs/reference/environment-variables",
        "docs/reference/settings",
        "docs/reference/ledger",
        "docs/reference/export",
        "docs/reference/json",
        "docs/reference/python-api",
        "docs/reference/logs",
        "docs/reference/bundle",
    ],
    "Explanation": [
        "docs/explanation/promises",
        "docs/explanation/architecture",
        "docs/explanation/decisions",
        "docs/explanation/planning",
        "docs/explanation/predictions",
        "docs/explanation/judging",
        "docs/explanation/reliability",
        "docs/explanation/performance",
    ],
    "Project": [
        "CONTRIBUTING",
        "CHANGELOG",
        "SECURITY",
        *(f"experiments/results/{name}/README" for name in MEASUREMENTS),
    ],
}

project = html_title = "repro"
root_doc = "docs/index"
include_patterns = ["docs/**.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "experiments/results/*/README.md"]
exclude_patterns = [".*", "build", "runs"]  # Sphinx walks through all other folders
extensions = ["myst_parser", "sphinx_copybutton"]
nitpicky = True
smartquotes = False  # options begin with two hyphens

html_theme = "furo"
html_extra_path = ["index.html"]
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_show_copyright = html_show_sphinx = html_copy_source = html_show_sourcelink = False
highlight_language = "none"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

myst_heading_anchors = 4  # the anchors of GitHub


def setup(app: Sphinx) -> None:
    """Add the navigation to the index, which is read as plain Markdown, too, and has no directives."""
    app.connect("source-read", _add_navigation)


def _add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            entries = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"
