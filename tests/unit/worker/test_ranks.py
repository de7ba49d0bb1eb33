"""What was seen of one rank of several, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from memgate_worker.engines.messages import SeenCommunicator, SeenRanks
from memgate_worker.engines.phantom.ranks import doubt_ranks
from memgate_worker.engines.phantom.tracker import Row, to_events
from memgate_worker.hook.memgate_hook.communication import KINDS, Communication


def seen(*, num_ranks: int = 8, **fields: Any) -> SeenRanks:
    """Make what was seen of a rank."""
    communicator = SeenCommunicator(
        num_ranks=num_ranks, rank=3, device=3, num_peers=0, traffic={"all_reduce": (2, 8)}
    )
    defaults: dict[str, Any] = {
        "rank": 3,
        "world_size": num_ranks,
        "local_rank": 3,
        "local_world_size": 8,
        "communicators": [communicator],
        "bytes_per_step": {},
        "reads_from_other_ranks": False,
        "assumes_objects": False,
    }
    return SeenRanks(**(defaults | fields))


@pytest.mark.parametrize(
    ("ranks", "others", "want"),
    [
        (None, [], []),
        (seen(num_ranks=1), [], []),
        (seen(), [], []),
        (seen(reads_from_other_ranks=True), [], ["SIZES_FROM_OTHER_RANKS"]),
        (seen(assumes_objects=True), [], ["OBJECTS_FROM_OTHER_RANKS"]),
        (None, [(0, 1 << 20)], ["OTHER_DEVICE_USED"]),
    ],
    ids=["no ranks", "one", "several", "sizes of others", "objects of others", "another device"],
)
def test_what_depends_on_others_is_doubted(ranks: Any, others: Any, want: list[str]) -> None:
    """Sizes and objects that others send, and memory on their devices."""
    assert [reason.code for reason in doubt_ranks(ranks, others)] == want


def test_only_the_rows_of_one_device_count() -> None:
    """Addresses tell which device a row is of."""
    rows = [Row(0, (device + 1 << 56) + 512, 512 * (device + 1), 0) for device in (0, 3)]

    _, blocks, num_before, _ = to_events(rows, (), 3)

    assert [block.address >> 56 for block in blocks] == [4]
    assert num_before == [0, 0, 1]


class Traffic:
    """A phantom with one communicator of eight ranks."""

    def __init__(self) -> None:
        self.num_communicators = 1
        self.all_reduced = 0
        self.num_reads_from_other_ranks = 0

    def counters(self) -> Traffic:
        """Return itself: it counts communicators."""
        return self

    def communicator(self, number: int, count: int) -> list[int]:
        """Return what is on record."""
        numbers = [8, 3, 3, 1, 2, self.all_reduced]
        return numbers + [0] * (count - len(numbers))


def test_the_first_step_is_not_like_the_others() -> None:
    """Bytes of a step are those of later ones; groups and buckets are made in the first."""
    phantom = Traffic()
    communication = Communication(phantom)  # type: ignore[arg-type]
    communication.note_rank(3, 8)
    for step, total in enumerate((1000, 1100, 1100, 1200), start=1):
        phantom.all_reduced = total
        communication.note_step(min(step, 3))

    described = communication.describe()

    assert described is not None
    assert described["bytes_per_step"] == {"all_reduce": 100}
    assert described["communicators"][0]["traffic"] == {"all_reduce": (2, 1200)}
    assert KINDS[0] == "all_reduce"


class Numbers:
    """A tensor on a GPU that other ranks have sent, as far as its reader is concerned."""

    is_cuda = True

    def __init__(self, phantom: Traffic) -> None:
        self._phantom = phantom

    def detach(self) -> Numbers:
        """Return itself."""
        return self

    def reshape(self, _: int) -> Numbers:
        """Return itself."""
        return self

    def tolist(self) -> list[int]:
        """Have the phantom count that it was read."""
        self._phantom.num_reads_from_other_ranks += 1
        return [5]


def test_what_is_read_to_be_left_for_others_is_no_read_of_the_job() -> None:
    """Numbers that a rank passes on are not known, and do not count until the job reads them."""
    phantom = Traffic()
    communication = Communication(phantom)  # type: ignore[arg-type]
    communication.note_rank(3, 8)

    assert communication.read(Numbers(phantom)) == ([5], False)
    described = communication.describe()
    assert described is not None
    assert not described["reads_from_other_ranks"]

    phantom.num_reads_from_other_ranks += 1
    described = communication.describe()
    assert described is not None
    assert described["reads_from_other_ranks"]


def test_a_single_process_is_no_rank() -> None:
    """There is nothing to tell."""
    phantom = Traffic()
    phantom.num_communicators = 0

    assert Communication(phantom).describe() is None  # type: ignore[arg-type]
