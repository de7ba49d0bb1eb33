"""`make fuzz SECONDS=60`: look for bytes that a target cannot take, led by what they reach.

Each target gets so many seconds of processor time, in a process of its own with a bound on memory
and on the time of one input. What is found stands in ``build/fuzz/findings``, and fails the run.
``--keep`` writes the inputs that reach something of their own back to tests/data/fuzz.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz.corpus import ROOT, keep

#: the doors of ``targets``, in the order in which they are fuzzed
NAMES = ("trace", "snapshot", "timeline", "settings", "spec", "question", "webhook")


def main() -> None:
    """Fuzz the targets that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], default=NAMES)
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time, for each")
    parser.add_argument("--keep", action="store_true", help="keep the inputs that are worth it")
    options = parser.parse_args()
    findings = _place("findings")
    failed = [name for name in options.targets if not _fuzz(name, options.seconds)]
    if options.keep:
        for name in options.targets:
            _distill(name)
    if failed:
        sys.exit(f"found something: {', '.join(failed)}; see {findings}")


def _place(name: str) -> Path:
    place = ROOT / "build" / "fuzz" / name
    place.mkdir(parents=True, exist_ok=True)
    return place


def _fuzz(target: str, seconds: float) -> bool:
    ran = _run(target, f"--seconds={seconds}")
    if ran.returncode:
        print(f"{target}: FAILED ({ran.returncode}), see {_log(target)}")
    return ran.returncode == 0


def _distill(target: str) -> None:
    """Keep the inputs that reach together what all of them reach."""
    distilled = _place(f"distilled/{target}")
    for old in distilled.iterdir():
        old.unlink()
    _run(target, f"--distil-to={distilled}").check_returncode()
    count = keep(target, [path.read_bytes() for path in distilled.iterdir()])
    print(f"{target}: {count} inputs are kept")


def _run(target: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tests.fuzz.inside", target, *options]
    with _log(target).open("w") as log:
        return subprocess.run(command, cwd=ROOT, stderr=log, check=False)


def _log(target: str) -> Path:
    return _place("logs") / target


if __name__ == "__main__":
    main()
