"""A worker whose answers are made up; all else of it is real: ``python -m`` runs it.

An answer says which question it answers: its peak is a function of the batch size.
"""

from __future__ import annotations

import threading

from memgate.contract import Work
from memgate.report import Estimate
from memgate_worker.logs import set_up_logs
from memgate_worker.main import make_worker, work
from memgate_worker.settings import WorkerSettings
from tests.builders import build_estimate
from tests.integration.queue_place import Stub

#: a run takes a moment, so that some are under way at any time
_RUN_SECONDS = 0.02


def peak_for(batch_size: int) -> int:
    """Return the peak in the answer about a batch size."""
    return batch_size * 1_000_003


def _answer(asked: Work) -> Estimate:
    threading.Event().wait(_RUN_SECONDS)
    peak = peak_for(asked.job.batch_size if asked.job is not None else 1)
    return build_estimate(
        peak_bytes=peak, timings_ms={"run": 1, "trace": 1, "replay": 1, "total": 2}
    )


def main() -> None:
    """Work until told to stop."""
    settings = WorkerSettings.from_environment()
    set_up_logs()
    work(make_worker(settings), settings, Stub(_answer))


if __name__ == "__main__":
    main()
