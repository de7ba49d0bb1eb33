"""The process that fuzzes one target, which ``run`` starts: all of ours is instrumented first."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["memgate", "memgate_service", "memgate_worker"]):
    from tests.fuzz.corpus import MAX_INPUT_BYTES, ROOT, make_seeds, read_kept
    from tests.fuzz.mutating import CODECS, Mutator, find_words
    from tests.fuzz.targets import TARGETS

_LIMITS = (f"-max_len={MAX_INPUT_BYTES}", "-rss_limit_mb=2048", "-timeout=30")


def main() -> None:
    """Fuzz, for so many seconds of processor time; or choose among the inputs that there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--distil-to", type=Path)
    options = parser.parse_args()
    inputs = _write_inputs(options.target)
    findings = ROOT / "build" / "fuzz" / "findings"
    arguments = [sys.argv[0], *_LIMITS, f"-artifact_prefix={findings}/{options.target}-"]
    if options.distil_to:
        _fuzz(
            options.target,
            TARGETS[options.target],
            [*arguments, "-merge=1", str(options.distil_to), str(inputs)],
        )
    else:
        _fuzz(options.target, _until(options.target, options.seconds), [*arguments, str(inputs)])


def _write_inputs(target: str) -> Path:
    """Write the inputs to begin with; those of earlier runs are there."""
    place = ROOT / "build" / "fuzz" / "inputs" / target
    place.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*make_seeds(target), *read_kept(target).values()]):
        (place / f"seed-{number}").write_bytes(data)
    return place


def _until(target: str, seconds: float) -> Callable[[bytes], None]:
    """Return the target, which ends this process when the time is used up."""
    began, num_inputs = time.process_time(), 0

    def take(data: bytes) -> None:
        nonlocal num_inputs
        num_inputs += 1
        TARGETS[target](data)
        spent = time.process_time() - began
        if spent > seconds:
            print(f"{target}: {num_inputs} inputs in {spent:.0f} s of processor time, no finding")
            sys.stdout.flush()
            os._exit(0)  # the fuzzer cannot be ended otherwise from within

    return take


def _fuzz(target: str, take: Callable[[bytes], None], arguments: Iterable[str]) -> None:
    codec = CODECS.get(target)
    if codec is None:
        atheris.Setup([*arguments], take)
    else:
        # looked up when it is called: before Fuzz() it is another function
        mutator = Mutator(
            codec,
            lambda data, size: atheris.Mutate(data, size),
            find_words(codec, make_seeds(target)),
        )
        atheris.Setup([*arguments], take, custom_mutator=mutator.change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
