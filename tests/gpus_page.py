"""The catalogue as a table for docs/gpus.md: ``python -m tests.gpus_page`` writes it.

A contract test fails where the page is not fresh.
"""

from __future__ import annotations

from pathlib import Path

from memgate.gpus import GpuSpec, find_reports, list_gpus, list_machines
from memgate.units import GIB

PAGE = Path(__file__).parents[1] / "docs" / "gpus.md"

#: what is below is generated
START = "## The catalogue\n"

_HEAD = """
Written by `python -m tests.gpus_page` from `memgate/gpus/table.py` and
`memgate/gpus/instances.py`. GiB; *used* is what answers use, *SMs* are multiprocessors, *cc* is the
compute capability.

| name | product | used | reported | cc | SMs | source |
|---|---|---|---|---|---|---|
"""

_MACHINES = """
## Machines of clouds

| GPU | machine types |
|---|---|
"""


def write_page(page: str) -> str:
    """Return the page with a fresh table."""
    gpus = list_gpus()
    rows = "\n".join(map(_row, gpus))
    machines = "\n".join(
        f"| `{gpu.name}` | {', '.join(f'`{one}`' for one in list_machines(gpu.name))} |"
        for gpu in gpus
        if list_machines(gpu.name)
    )
    return f"{page.partition(START)[0]}{START}{_HEAD}{rows}\n{_MACHINES}{machines}\n"


def _row(gpu: GpuSpec) -> str:
    reports = find_reports(gpu)
    sizes = (gpu.memory_bytes, reports.lowest_bytes, reports.highest_bytes)
    used, lowest, highest = (f"{size / GIB:.2f}" for size in sizes)
    told = lowest if lowest == highest else f"{lowest} to {highest}"
    return (
        f"| `{gpu.name}` | {gpu.product} | {used} | {told} | {gpu.capability} |"
        f" {gpu.multiprocessors} | {reports.source} |"
    )


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text()))
