"""Holds traces, recorded in the styles in which people record them, against the phantom.

``make trace-styles`` records every job of ``styles/jobs`` in every style of ``styles/recording``,
on the CPU and with plain torch.profiler, runs the same job on the phantom, and compares what both
say of reserved and allocated memory, and of ten GPUs with a little less and a little more memory
than the job needs. The table is in docs/profile.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay, replay
from memgate.capacity import AMPLE_BYTES
from memgate.decision import Decision
from memgate.errors import MemgateError
from memgate.gpus import GpuTarget, find_gpu, parse_gpu
from memgate.pipeline import estimate_timeline
from memgate.report import Estimate
from memgate.timeline import Timeline
from memgate_worker.engines.host_client import host_environment
from memgate_worker.local import Script, estimate_script, estimate_upload
from memgate_worker.runtimes.runtime import Runtime, find_runtime

HERE = Path(__file__).parent / "styles"
GPU = find_gpu("a100-40")

#: of the phantom: what is cached takes some steps to settle
NUM_STEPS = 6

#: of what the job needs: at these much memory both are asked for their verdict
SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1)

#: differences of more than this must carry a doubt
MAX_DIFFERENCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A job in a style, beside the phantom."""

    job: str
    style: str
    #: the job takes what most traces do not show
    is_hiding: bool = False
    reserved_difference: float | None = None
    allocated_difference: float | None = None
    #: codes of reasons that take the plain admit away
    doubts: Sequence[str] = ()
    #: capacities at which the trace is admitted and the phantom rejects
    wrong_admits: int = 0
    #: why there is no answer
    refused: str = ""

    @property
    def is_silent(self) -> bool:
        """It is far off, or wrong, and does not say so."""
        difference = abs(self.reserved_difference or 0.0)
        return not self.refused and difference > MAX_DIFFERENCE and not self.doubts


def record(job: str, directory: Path, runtime: Runtime, styles: Sequence[str]) -> None:
    """Have a job recorded in styles, all if none is named."""
    ran = subprocess.run(
        [runtime.python, HERE / "recording.py", job, directory, *styles],
        env=host_environment(runtime),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"{job} was not recorded:\n{ran.stderr[-2000:]}")


def ask_phantom(job: str, runtime: Runtime) -> Timeline | str:
    """Run a job on the phantom; the reason if it cannot."""
    script = Script(path=HERE / "jobs.py", arguments=[job], num_steps=NUM_STEPS)
    try:
        return estimate_script(script, GpuTarget(gpu=GPU), runtime=runtime.name).timeline
    except MemgateError as error:
        return error.message


def compare(
    job: str, traces: Iterable[Path], known: Timeline | str, *, is_hiding: bool = False
) -> Iterator[Pair]:
    """Say of each trace how far it is from what the phantom knows."""
    for path in sorted(traces):
        style = path.name.split(".")[1].replace("_", " ")
        try:
            with path.open("rb") as stream:
                found = estimate_upload(stream, GpuTarget(gpu=GPU))
        except MemgateError as error:
            yield Pair(
                job=job, style=style, is_hiding=is_hiding, refused=f"{error.code}: {error.message}"
            )
            continue
        # on a GPU with plenty of memory, what is in the way of an admission is a doubt
        doubts = [] if found.estimate.decision is Decision.ADMIT else _codes(found.estimate)
        if isinstance(known, str):
            yield Pair(job=job, style=style, is_hiding=is_hiding, doubts=doubts)
            continue
        ours, theirs = _ample(found.timeline), _ample(known)
        yield Pair(
            job=job,
            style=style,
            is_hiding=is_hiding,
            reserved_difference=ours.peak_reserved_bytes / theirs.peak_reserved_bytes - 1,
            allocated_difference=ours.peak_allocated_bytes / theirs.peak_allocated_bytes - 1,
            doubts=doubts,
            wrong_admits=0 if doubts else _count_wrong_admits(found.timeline, known),
        )


def _codes(estimate: Estimate) -> list[str]:
    return [reason.code for reason in estimate.reasons if reason.code != "FITS"]


def _ample(timeline: Timeline) -> Replay:
    return replay(timeline, parse_alloc_conf(""), AMPLE_BYTES)


def _count_wrong_admits(timeline: Timeline, known: Timeline) -> int:
    """Count the capacities at which a trace is admitted and the phantom rejects."""
    said = _judge(known, GpuTarget(gpu=GPU))
    of_job = said.required_bytes - said.context_bytes
    other = said.needs_bytes - of_job
    targets = [
        parse_gpu({"memory_bytes": other + int(share * of_job), "compute_capability": "8.0"})
        for share in SHARES
    ]
    return sum(
        _judge(known, target).decision is Decision.REJECT
        and _judge(timeline, target).decision is Decision.ADMIT
        for target in targets
    )


def _judge(timeline: Timeline, target: GpuTarget) -> Estimate:
    return estimate_timeline(timeline, target, engine="", runtime="", versions={})


def show(pairs: Sequence[Pair]) -> None:
    """Print what each style costs, and every pair that is off or wrong."""
    console = Console(width=150)
    table = Table(
        "style", "pairs", "median", "95 %", "worst", "beyond 5 %", "doubted", "wrong admits"
    )
    shown = [pair for pair in pairs if not pair.is_hiding]
    groups = {
        style: [pair for pair in shown if pair.style == style]
        for style in dict.fromkeys(pair.style for pair in shown)
    }
    groups["all"] = shown
    groups["jobs that hide what they take"] = [pair for pair in pairs if pair.is_hiding]
    for style, mine in groups.items():
        compared = sorted(
            abs(pair.reserved_difference) for pair in mine if pair.reserved_difference is not None
        )
        if compared:
            table.add_row(
                style,
                str(len(compared)),
                f"{median(compared):.2%}",
                f"{compared[int(0.95 * (len(compared) - 1))]:.1%}",
                f"{compared[-1]:.1%}",
                str(sum(one > MAX_DIFFERENCE for one in compared)),
                str(sum(bool(pair.doubts) for pair in mine)),
                str(sum(pair.wrong_admits > 0 for pair in mine)),
            )
    console.print(table)
    for pair in pairs:
        off = pair.reserved_difference
        if pair.refused or pair.wrong_admits or off is None or abs(off) > 0.01:
            by = "" if off is None else f"{off:+.1%} / {pair.allocated_difference:+.1%}"
            mark = "SILENT " if pair.is_silent or pair.wrong_admits else ""
            said = pair.refused or ", ".join(pair.doubts)
            console.print(f"{mark}{pair.job}, {pair.style}: {by} {said}", markup=False)


def main() -> None:
    """Record, run and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", default="torch-2.14")
    parser.add_argument("--jobs", nargs="*", default=[], help="all if none is named")
    parser.add_argument("--styles", nargs="*", default=[], help="all if none is named")
    parser.add_argument("--keep", type=Path, help="directory for the traces; those there are used")
    parser.add_argument("--json", type=Path, dest="out", help="file for the pairs")
    asked = parser.parse_args()
    runtime = find_runtime(asked.runtime)
    known, hiding = _job_names(runtime)
    jobs = asked.jobs or known
    with tempfile.TemporaryDirectory() as own:
        directory = asked.keep or Path(own)
        directory.mkdir(parents=True, exist_ok=True)
        new = [job for job in jobs if not list(directory.glob(f"{job}.*"))]
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda job: record(job, directory, runtime, asked.styles), new))
        pairs = [
            pair
            for job in jobs
            for pair in compare(
                job,
                directory.glob(f"{job}.*"),
                ask_phantom(job, runtime),
                is_hiding=job in hiding,
            )
        ]
    show(pairs)
    if asked.out:
        asked.out.write_text(json.dumps([asdict(pair) for pair in pairs], indent=1))


def _job_names(runtime: Runtime) -> tuple[list[str], list[str]]:
    """Return the names of all jobs, and of those that take what most traces do not show."""
    code = (
        f"import json, sys; sys.path.insert(0, {str(HERE)!r}); import jobs;"
        " print(json.dumps([list(jobs.JOBS), sorted(jobs.HIDING)]))"
    )
    ran = subprocess.run(
        [runtime.python, "-c", code],
        env=host_environment(runtime),
        capture_output=True,
        text=True,
        check=True,
    )
    names, hiding = json.loads(ran.stdout.splitlines()[-1])
    return names, hiding


if __name__ == "__main__":
    main()
