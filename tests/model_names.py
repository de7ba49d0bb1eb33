"""docs/models.md, from the table of public models: ``python -m tests.model_names`` writes it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from memgate.units import format_count
from memgate_worker.jobs.public import list_public_models

PAGE = Path(__file__).parents[1] / "docs" / "models.md"

#: what follows is made from the table
_MARK = "## The names\n"


def make_page(before: str) -> str:
    """Return the page with its list made anew; the text before it stays."""
    return before.partition(_MARK)[0] + _MARK + "".join(_sections())


def _sections() -> list[str]:
    sections = []
    for family, models in groupby(list_public_models(), key=lambda model: model.family):
        rows = list(models)
        lines = [f"\n### {family}\n\n"]
        lines += [f"Source: {source}\n" for source in rows[0].sources[:1]]
        lines += [f"and {source}\n" for source in rows[0].sources[1:]]
        lines += ["\n| name | class | parameters |\n|---|---|---|\n"]
        lines += [
            f"| `{one.name}` | `{one.class_name}` | {format_count(one.num_parameters)} |\n"
            for one in rows
        ]
        sections.append("".join(lines))
    return sections


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
