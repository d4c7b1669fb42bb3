"""Command that writes the generated pages.

python -m tests.reference            # writes the pages
python -m tests.reference --check    # prints differences and exits with 1
"""

from __future__ import annotations

import argparse
import difflib
import sys

from tests.pages import CHECKOUT
from tests.reference.pages import PAGES


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate pages of docs/reference from the commands and models.")
    parser.add_argument("--check", action="store_true", help="print the differences, write nothing")
    check: bool = parser.parse_args().check
    stale = False
    for name, text_of in PAGES.items():
        file, new = CHECKOUT / name, text_of()
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        if not check:
            file.write_text(new, encoding="utf-8")
            continue
        lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(*lines, name, "generated"))
        stale = stale or old != new
    if stale:
        print("Hint: `python -m tests.reference` writes the pages")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
