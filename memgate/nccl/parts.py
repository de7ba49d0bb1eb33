"""What NCCL is used for, and what it takes: communicators, settings, a range of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: of PyTorch's newest wheels, if the job's own is not known
USUAL_VERSION = (2, 27)


class MemoryRange(NamedTuple):
    """Bytes: the least, what is likely, and the most."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int

    def __add__(self, other: object) -> MemoryRange:
        if not isinstance(other, MemoryRange):
            return NotImplemented
        return MemoryRange(*(mine + its for mine, its in zip(self, other, strict=True)))

    @property
    def is_any(self) -> bool:
        """It may be more than nothing."""
        return self.high_bytes > 0


NO_MEMORY = MemoryRange(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """Ranks that talk to each other, seen from one of them."""

    num_ranks: int
    #: how many of them are on the same node, this one included
    ranks_on_node: int
    #: ranks that it sends to or receives from directly (send, all-to-all), here and on other nodes
    local_peers: int = 0
    remote_peers: int = 0
    #: otherwise its ranks may as well be one of each node
    is_layout_known: bool = True
    #: collectives that it was used for, as torch.distributed names them; None: not known
    collectives: frozenset[str] | None = None

    def __post_init__(self) -> None:
        assert 1 <= self.ranks_on_node <= self.num_ranks

    @property
    def is_on_one_node(self) -> bool:
        """No network is needed."""
        return self.ranks_on_node == self.num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """What the job's environment tells NCCL; None: NCCL decides."""

    buffer_bytes: int | None = None
    max_channels: int | None = None
    min_channels: int | None = None
    uses_nvls: bool | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> NcclSettings:
        """Read the variables that change how much NCCL takes; what is not a number is ignored."""

        def number(name: str) -> int | None:
            text = environment.get(name, "")
            return int(text) if text.isdecimal() else None

        nvls = number("NCCL_NVLS_ENABLE")
        return cls(
            buffer_bytes=number("NCCL_BUFFSIZE"),
            max_channels=number("NCCL_MAX_NCHANNELS"),
            min_channels=number("NCCL_MIN_NCHANNELS"),
            uses_nvls=None if nvls is None else nvls > 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclUse:
    """What one process of a job uses NCCL for."""

    communicators: tuple[Communicator, ...] = ()
    #: major and minor
    version: tuple[int, int] = USUAL_VERSION
    settings: NcclSettings = NcclSettings()


#: NCCL is not used
NO_COMMUNICATION = NcclUse()
