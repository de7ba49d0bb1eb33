"""Renews the evaluation in docs/accuracy.md from measured runs.

``make evaluation PEAKS=peaks.csv CAPPED=capped_runs.csv RUNTIME=torch-2.6`` runs ``memgate accuracy
--report``, puts its report between the marks of that page, and its pictures into docs/images.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
IMAGES = ROOT / "docs" / "images" / "evaluation"
BEGIN, END = "<!-- evaluation: begin -->\n", "<!-- evaluation: end -->\n"


def include(page: str, report: str, images: str) -> str:
    """Put a report between the marks of a page; its pictures are in a folder beside the page.

    Raises:
        ValueError: if the page lacks a mark.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: the marks of the evaluation are missing")
    return f"{head}{BEGIN}\n{report.replace('](', f']({images}/')}\n{END}{tail}"


def main(arguments: Sequence[str]) -> int:
    """Run the command with the given arguments, and renew the page."""
    parser = argparse.ArgumentParser(prog="make evaluation", description=__doc__)
    parser.add_argument("accuracy", nargs="+", help="arguments of memgate accuracy")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("memgate")), "accuracy"]
        ran = subprocess.run([*command, *options.accuracy, "--report", folder], check=False)
        if ran.returncode == 0:
            report = Path(folder) / "report.md"
            PAGE.write_text(include(PAGE.read_text(), report.read_text(), "images/evaluation"))
            IMAGES.mkdir(exist_ok=True)
            for picture in Path(folder).glob("*.png"):
                shutil.copy(picture, IMAGES)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
