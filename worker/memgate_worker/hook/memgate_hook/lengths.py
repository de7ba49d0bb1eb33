"""Shapes of batches -> which of their dimensions vary, and how large each is in the longest batch.

A batch is known by its tensors, each at a place of its own (``input_ids``, ``0.labels``). What
varies from batch to batch is padded; the largest of those dimensions leads. The others follow it:
by the same difference if there always was one (labels that are one shorter), otherwise in
proportion. No torch here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

#: what is known of a tensor: its shape, and the largest value if it may hold lengths
Tensors = Mapping[str, "SeenBatchTensor"]

#: a dimension of the tensor at a place
_Dimension = tuple[str, int]

#: so many batches are compared before anything is padded
MIN_BATCHES = 3

#: and so many are remembered
_MAX_BATCHES = 200


class SeenBatchTensor(NamedTuple):
    """A tensor of a batch."""

    shape: tuple[int, ...]
    #: of whole numbers in one dimension; None for all others
    top_value: int | None = None


class Plan(NamedTuple):
    """What the longest batch is like."""

    #: sizes of dimensions, for the tensor at a place
    sizes: Mapping[str, Mapping[int, int]]
    #: places of lengths, and the length that they have then
    values: Mapping[str, int]
    #: the usual number of samples, where a tensor has them
    num_samples: Mapping[str, int]
    #: some dimensions vary on their own, and were made longer in proportion
    in_proportion: bool

    def takes(self, batch: Tensors) -> bool:
        """Tell whether a batch has its usual number of samples, so that it can be padded."""
        return all(
            place not in batch or batch[place].shape[:1] == (usual,)
            for place, usual in self.num_samples.items()
        )

    def longer_size(self, batch: Tensors) -> int | None:
        """Return a size of a batch beyond that of the longest one; None if there is none."""
        sizes = (
            tensor.shape[dimension]
            for place, tensor in batch.items()
            for dimension, size in self.sizes.get(place, {}).items()
            if tensor.shape[dimension] > size
        )
        return max(sizes, default=None)


class NoPlanError(Exception):
    """No batch can be made that is the longest; the message says why."""


class BatchHistory:
    """The batches of one source."""

    def __init__(self) -> None:
        self._batches: list[Tensors] = []

    def add(self, batch: Tensors) -> None:
        """Note an ordinary batch."""
        if len(self._batches) < _MAX_BATCHES:
            self._batches.append(batch)

    def plan(self, length: int) -> Plan | None:
        """Say what the longest batch is like; None as long as that cannot be known.

        Raises:
            NoPlanError: if what varies cannot be padded to ``length``.
        """
        if len(self._batches) < MIN_BATCHES:
            return None
        usual = self._usual_samples()
        series = self._varying(usual)
        if not series:
            return None
        self._check_samples(series)
        lead = max(series, key=lambda one: max(series[one].values()))
        longest = max(series[lead].values())
        if longest > length:
            raise NoPlanError(f"a batch of {longest} was seen, which is longer than {length}")
        sizes: dict[str, dict[int, int]] = {}
        in_proportion = False
        for (place, dimension), sizes_seen in series.items():
            size, follows = _follow(series[lead], sizes_seen, length)
            in_proportion |= not follows
            sizes.setdefault(place, {})[dimension] = size
        return Plan(sizes, self._lengths(series[lead], length), usual, in_proportion)

    def _usual_samples(self) -> dict[str, int]:
        """Return the first dimension of each tensor, where most batches have the same."""
        found: dict[str, Counter[int]] = {}
        for batch in self._batches:
            for place, tensor in batch.items():
                if tensor.shape:
                    found.setdefault(place, Counter())[tensor.shape[0]] += 1
        usual = {place: counts.most_common(1)[0] for place, counts in found.items()}
        return {
            place: size
            for place, (size, count) in usual.items()
            if 2 * count > sum(found[place].values())
        }

    def _varying(self, usual: Mapping[str, int]) -> dict[_Dimension, dict[int, int]]:
        """Return the dimensions that vary, each with its size in the batches that tell.

        The last batch of an epoch has fewer samples; it is left out.
        """
        series: dict[_Dimension, dict[int, int]] = {}
        num_dimensions: dict[str, int] = {}
        for number, batch in enumerate(self._batches):
            for place, tensor in batch.items():
                if num_dimensions.setdefault(place, len(tensor.shape)) != len(tensor.shape):
                    raise NoPlanError(f"{place} does not always have the same dimensions")
                if usual.get(place) not in (None, *tensor.shape[:1]):
                    continue
                for dimension, size in enumerate(tensor.shape):
                    series.setdefault((place, dimension), {})[number] = size
        return {one: sizes for one, sizes in series.items() if len({*sizes.values()}) > 1}

    def _check_samples(self, series: Mapping[_Dimension, object]) -> None:
        places = Counter(place for place, _ in series)
        for place, dimension in series:
            if dimension == 0 and places[place] > 1:
                raise NoPlanError(
                    f"the number of samples varies together with their length ({place}), as where"
                    " batches are made of so many tokens"
                )

    def _lengths(self, lead: Mapping[int, int], length: int) -> dict[str, int]:
        """Find tensors of lengths: their largest value always is the size of the batch."""
        values: dict[str, dict[int, int]] = {}
        for number, batch in enumerate(self._batches):
            for place, tensor in batch.items():
                if tensor.top_value is not None and number in lead:
                    values.setdefault(place, {})[number] = tensor.top_value
        differences = {place: _difference(lead, seen) for place, seen in values.items()}
        return {
            place: length + difference
            for place, difference in differences.items()
            if difference is not None and abs(difference) <= 1
        }


def _difference(lead: Mapping[int, int], other: Mapping[int, int]) -> int | None:
    """Return how much more the other always is; None if that differs, or was seen too rarely."""
    common = lead.keys() & other.keys()
    differences = {other[number] - lead[number] for number in common}
    if len(common) < MIN_BATCHES - 1 or len(differences) != 1:
        return None
    return differences.pop()


def _follow(lead: Mapping[int, int], other: Mapping[int, int], length: int) -> tuple[int, bool]:
    """Return how large a dimension is when the leading one has a length, and if that is sure."""
    difference = _difference(lead, other)
    if difference is not None:
        return length + difference, True
    most, longest = max(other.values()), max(lead.values())
    common = lead.keys() & other.keys()
    is_ratio = len(common) >= MIN_BATCHES - 1 and all(
        other[number] * longest == most * lead[number] for number in common
    )
    return -(-most * length // longest), is_ratio
