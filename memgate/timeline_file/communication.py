"""What a job uses NCCL for, as a timeline file has it."""

from __future__ import annotations

from dataclasses import asdict

from memgate.nccl import NO_COMMUNICATION, Communicator, NcclSettings, NcclUse
from memgate.timeline_file.columns import broken
from memgate.timeline_file.document import CommunicatorPart, NcclPart


def pack_communication(used: NcclUse) -> NcclPart | None:
    """Write it; None if NCCL is not used."""
    if not used.communicators:
        return None
    return NcclPart(
        communicators=[
            CommunicatorPart(
                num_ranks=one.num_ranks,
                ranks_on_node=one.ranks_on_node,
                local_peers=one.local_peers,
                remote_peers=one.remote_peers,
                is_layout_known=one.is_layout_known,
                collectives=None if one.collectives is None else sorted(one.collectives),
            )
            for one in used.communicators
        ],
        version=used.version,
        **asdict(used.settings),
    )


def unpack_communication(part: NcclPart | None) -> NcclUse:
    """Read it.

    Raises:
        TimelineFileError: if more ranks are on a node than there are.
    """
    if part is None:
        return NO_COMMUNICATION
    return NcclUse(
        communicators=tuple(_unpack(one) for one in part.communicators),
        version=part.version,
        settings=NcclSettings(
            buffer_bytes=part.buffer_bytes,
            max_channels=part.max_channels,
            min_channels=part.min_channels,
            uses_nvls=part.uses_nvls,
        ),
    )


def _unpack(one: CommunicatorPart) -> Communicator:
    if one.ranks_on_node > one.num_ranks:
        raise broken(
            "nccl.communicators",
            f"{one.ranks_on_node} of {one.num_ranks} ranks on a node",
            "there are not that many",
        )
    return Communicator(
        num_ranks=one.num_ranks,
        ranks_on_node=one.ranks_on_node,
        local_peers=one.local_peers,
        remote_peers=one.remote_peers,
        is_layout_known=one.is_layout_known,
        collectives=None if one.collectives is None else frozenset(one.collectives),
    )
