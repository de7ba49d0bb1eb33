"""Lengths and shapes that vary from batch to batch: listed, or drawn from a distribution."""

from __future__ import annotations

from enum import StrEnum
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from memgate.errors import UnsupportedJobError
from memgate.jobspec.draws import draw_largest, interpolate, lognormal, normal
from memgate.jobspec.parts import MAX_DIMENSIONS, MAX_SIZE, Part, Size
from memgate.mistakes import RuleError

#: batches in a list, or drawn; which of them are run is decided in ``memgate.batch_choice``
MAX_BATCHES = 4096
#: points of a distribution
MAX_QUANTILES = 1024
#: samples that are sorted, one by one
MAX_SORTED = 1 << 20

Shape = Annotated[tuple[Size, ...], Field(max_length=MAX_DIMENSIONS)]
_Number = Annotated[float, Field(strict=True, gt=0, le=MAX_SIZE)]
_Share = Annotated[float, Field(gt=0, lt=1)]


#: with shares, or at even ones
_Quantiles = Annotated[
    Annotated[dict[_Share, Size], Field(max_length=MAX_QUANTILES), Tag("~shares")]
    | Annotated[tuple[Size, ...], Field(min_length=2, max_length=MAX_QUANTILES), Tag("~even")],
    Discriminator(lambda value: "~shares" if isinstance(value, dict) else "~even"),
]


class Distribution(StrEnum):
    """How lengths are distributed."""

    UNIFORM = "uniform"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"
    QUANTILES = "quantiles"


_NEEDS = {
    Distribution.UNIFORM: (),
    Distribution.NORMAL: ("mean", "deviation"),
    Distribution.LOGNORMAL: ("mean", "deviation"),
    Distribution.QUANTILES: ("quantiles",),
}


class LengthDistribution(Part):
    """Lengths of samples; a batch is padded to its longest."""

    distribution: Annotated[Distribution, Field(examples=["lognormal"])]
    """``normal`` and ``lognormal`` take ``mean`` and ``deviation``, ``quantiles`` its own."""
    longest: Annotated[Size, Field(examples=[2048])]
    """Longer samples are cut to it. The last batch that is run has this length."""
    shortest: Size = 1
    """No sample is shorter."""
    mean: _Number | None = None
    """Of the lengths themselves, before any is cut."""
    deviation: _Number | None = None
    """The standard deviation of the same."""
    quantiles: _Quantiles | None = None
    """Shares of the samples, each with the length that none of them exceeds (``{"0.5": 180,
    "0.99": 700}``), or lengths at even shares, from the shortest sample to the longest."""
    batches: Annotated[int, Field(strict=True, ge=1, le=MAX_BATCHES)] = 64
    """How many are drawn."""
    per: Literal["sample", "batch"] = "sample"
    """``batch``: a length is that of a whole batch, and not the largest of its samples."""
    bucket: Annotated[int, Field(strict=True, ge=1, le=MAX_BATCHES)] = 1
    """The samples of so many batches are sorted by length, long to short, before they are dealt
    out: batches of similar lengths."""
    multiple_of: Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)] = 1
    """Batches are padded to a multiple of this."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 63)] = 0
    """Another one draws other lengths."""

    def model_post_init(self, _: Any) -> None:
        """Check that it has what its kind needs, and nothing else."""
        needed = _NEEDS[self.distribution]
        for name in ("mean", "deviation", "quantiles"):
            is_given = getattr(self, name) is not None
            if name in needed and not is_given:
                raise RuleError(f"a {self.distribution} distribution needs '{name}'", "add it")
            if is_given and name not in needed:
                rule = f"a {self.distribution} distribution has no '{name}'"
                raise RuleError(rule, "leave it out")
        if self.shortest > self.longest:
            raise RuleError("'shortest' must not exceed 'longest'")
        lengths = [length for _, length in self._points]
        if lengths != sorted(lengths):
            rule = "lengths in 'quantiles' must grow with the shares, from 'shortest' to 'longest'"
            raise RuleError(rule)

    @property
    def _points(self) -> list[tuple[float, int]]:
        given = self.quantiles
        if given is None:
            return []
        if isinstance(given, dict):
            return [(0.0, self.shortest), *sorted(given.items()), (1.0, self.longest)]
        return [(at / (len(given) - 1), length) for at, length in enumerate(given)]

    def draw(self, batch_size: int) -> tuple[int, ...]:
        """Return the lengths of successive batches, and then the longest.

        Raises:
            UnsupportedJobError: if more samples would have to be sorted than we do.
        """
        num_samples = self.check_sorted(batch_size)
        shares = draw_largest(self.batches, num_samples, self.seed, self.bucket)
        return (*(self._pad(self._at(share)) for share in shares), self._pad(self.longest))

    def check_sorted(self, batch_size: int) -> int:
        """Return of how many samples a batch takes the longest. Raises as ``draw``."""
        num_samples = 1 if self.per == "batch" else batch_size
        if self.bucket > 1 and self.batches * num_samples > MAX_SORTED:
            raise UnsupportedJobError(
                f"bucket: {self.batches:,} batches of {num_samples:,} samples would be sorted by"
                f" length, and memgate sorts {MAX_SORTED:,} samples at most, which is its own"
                " limit; draw fewer batches, or leave out 'bucket'"
            )
        return num_samples

    def _at(self, share: float) -> float:
        if self.distribution is Distribution.UNIFORM:
            return self.shortest + share * (self.longest - self.shortest)
        if self.distribution is Distribution.QUANTILES:
            return interpolate(share, self._points)
        make = normal if self.distribution is Distribution.NORMAL else lognormal
        return make(share, self.mean or 0, self.deviation or 0)

    def _pad(self, length: float) -> int:
        whole = ceil(min(max(length, self.shortest), self.longest))
        return -(-whole // self.multiple_of) * self.multiple_of


class ShapeDistribution(LengthDistribution):
    """Shapes of samples whose sides vary together."""

    dimensions: Annotated[
        tuple[Size | None, ...],
        Field(min_length=1, max_length=MAX_DIMENSIONS, examples=[[3, None, None]]),
    ]
    """The shape; ``null`` stands for the side that is drawn."""

    def draw_shapes(self, batch_size: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of successive batches, and then the largest. Raises as ``draw``."""
        return tuple(
            tuple(length if side is None else side for side in self.dimensions)
            for length in self.draw(batch_size)
        )


class LengthsFile(Part):
    """A file of lengths, which the command line and the Python client read."""

    file: Annotated[str, Field(examples=["lengths.txt"])]
    """Its path, from the directory of the spec: a length on each line, CSV, or a list in JSON."""
    column: str | None = None
    """Of CSV, by its name in the first line; the first unless given."""
    per: Literal["sample", "batch"] = "sample"
    """``sample``: lengths of the data set's samples, whose distribution is taken; ``batch``: those
    of successive batches, run in their order. Shapes are always those of batches."""
    batches: Annotated[int, Field(strict=True, ge=1, le=MAX_BATCHES)] = 64
    """As of a distribution; so are the others."""
    bucket: Annotated[int, Field(strict=True, ge=1, le=MAX_BATCHES)] = 1
    """As of a distribution: samples of so many batches are sorted by length."""
    multiple_of: Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)] = 1
    """Batches are padded to a multiple of this."""
    longest: Size | None = None
    """Longer samples are cut to it; the longest of the file unless given."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 63)] = 0
    """Another one draws other lengths."""


def _refuse(given: LengthsFile) -> LengthsFile:
    raise RuleError(
        "a file of lengths is read where the job is asked about, never by the service",
        "ask with the command line or the Python client, or write the lengths as a list or a"
        " distribution",
    )


_File = Annotated[LengthsFile, AfterValidator(_refuse), Tag("~file")]


def _kind(value: Any) -> str:
    """Tell by its form which kind of lengths or shapes a value is."""
    if isinstance(value, list | tuple):
        is_nested = bool(value) and isinstance(value[0], list | tuple)
        return "~shapes" if is_nested else "~list"
    if isinstance(value, dict):
        return "~file" if "file" in value else "~distribution"
    return "~distribution" if isinstance(value, Part) else "~one"


#: of sequences: one length, those of successive batches, or how they are distributed
Lengths = Annotated[
    Annotated[Size, Tag("~one")]
    | Annotated[tuple[Size, ...], Field(min_length=1, max_length=MAX_BATCHES), Tag("~list")]
    | Annotated[LengthDistribution, Tag("~distribution")]
    | _File,
    Discriminator(lambda value: "~list" if (kind := _kind(value)) == "~shapes" else kind),
]

#: of samples: one shape, those of successive batches, or how their sides are distributed
Shapes = Annotated[
    Annotated[Shape, Tag("~list")]
    | Annotated[tuple[Shape, ...], Field(min_length=1, max_length=MAX_BATCHES), Tag("~shapes")]
    | Annotated[ShapeDistribution, Tag("~distribution")]
    | _File,
    Discriminator(lambda value: "~list" if (kind := _kind(value)) == "~one" else kind),
]
