"""Machines that clouds rent -> the GPU that they have, how many, and how much of it.

As generally known, not read from the clouds' lists again. Machines to which any GPU can be attached
(Google's N1) are not here: their name does not say which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

#: by the name of the GPU: machine types, with the number of GPUs, or the part of one, unless one
_MACHINES = {
    "p40": "ND6s ND12s=2 ND24s=4 ND24rs=4",
    "p100-16": "NC6s_v2 NC12s_v2=2 NC24s_v2=4 NC24rs_v2=4 VM.GPU2.1 BM.GPU2.2=2",
    "v100-16": """p3.2xlarge p3.8xlarge=4 p3.16xlarge=8 NC6s_v3 NC12s_v3=2 NC24s_v3=4 NC24rs_v3=4
        VM.GPU3.1 VM.GPU3.2=2 VM.GPU3.4=4 BM.GPU3.8=8 gpu_8x_v100=8""",
    "v100-32": "p3dn.24xlarge=8 ND40rs_v2=8",
    "t4": """g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.16xlarge g4dn.12xlarge=4
        g4dn.metal=8 NC4as_T4_v3 NC8as_T4_v3 NC16as_T4_v3 NC64as_T4_v3=4""",
    "a10g": """g5.xlarge g5.2xlarge g5.4xlarge g5.8xlarge g5.16xlarge g5.12xlarge=4 g5.24xlarge=4
        g5.48xlarge=8""",
    "a10": """NV6ads_A10_v5=1/6 NV12ads_A10_v5=1/3 NV18ads_A10_v5=1/2 NV36ads_A10_v5
        NV36adms_A10_v5 NV72ads_A10_v5=2 VM.GPU.A10.1 VM.GPU.A10.2=2 BM.GPU.A10.4=4 gpu_1x_a10""",
    "l4": """g6.xlarge g6.2xlarge g6.4xlarge g6.8xlarge g6.16xlarge g6.12xlarge=4 g6.24xlarge=4
        g6.48xlarge=8 gr6.4xlarge gr6.8xlarge g6f.large=1/8 g6f.xlarge=1/8 g6f.2xlarge=1/4
        g6f.4xlarge=1/2 gr6f.4xlarge=1/2 g2-standard-4 g2-standard-8 g2-standard-12
        g2-standard-16 g2-standard-32 g2-standard-24=2 g2-standard-48=4 g2-standard-96=8""",
    "l40s": """g6e.xlarge g6e.2xlarge g6e.4xlarge g6e.8xlarge g6e.16xlarge g6e.12xlarge=4
        g6e.24xlarge=4 g6e.48xlarge=8 BM.GPU.L40S.4=4""",
    "a100-40": """p4d.24xlarge=8 a2-highgpu-1g a2-highgpu-2g=2 a2-highgpu-4g=4 a2-highgpu-8g=8
        a2-megagpu-16g=16 ND96asr_v4=8 ND96asr_A100_v4=8 BM.GPU4.8=8 gpu_1x_a100
        gpu_1x_a100_sxm4 gpu_8x_a100=8""",
    "a100-80": """p4de.24xlarge=8 a2-ultragpu-1g a2-ultragpu-2g=2 a2-ultragpu-4g=4
        a2-ultragpu-8g=8 NC24ads_A100_v4 NC48ads_A100_v4=2 NC96ads_A100_v4=4 ND96amsr_A100_v4=8
        BM.GPU.A100-v2.8=8 gpu_8x_a100_80gb_sxm4=8""",
    "h100-pcie": "gpu_1x_h100_pcie",
    "h100-80": """p5.4xlarge p5.48xlarge=8 a3-highgpu-1g a3-highgpu-2g=2 a3-highgpu-4g=4
        a3-highgpu-8g=8 a3-megagpu-8g=8 a3-edgegpu-8g=8 ND96isr_H100_v5=8 BM.GPU.H100.8=8
        gpu_1x_h100_sxm5 gpu_2x_h100_sxm5=2 gpu_4x_h100_sxm5=4 gpu_8x_h100_sxm5=8""",
    "h100-94": "NC40ads_H100_v5 NC80adis_H100_v5=2 NCC40ads_H100_v5",
    "gh200-96": "gpu_1x_gh200",
    "h200": "p5e.48xlarge=8 p5en.48xlarge=8 a3-ultragpu-8g=8 ND96isr_H200_v5=8 BM.GPU.H200.8=8",
    "b200": "p6-b200.48xlarge=8 a4-highgpu-8g=8 BM.GPU.B200.8=8 gpu_1x_b200 gpu_8x_b200_sxm6=8",
    "gb200": "p6e-gb200.36xlarge=4 a4x-highgpu-4g=4 ND128isr_NDR_GB200_v6=4 BM.GPU.GB200.4=4",
    "b300": "p6-b300.48xlarge=8",
    "rtx-a6000": "gpu_1x_a6000 gpu_2x_a6000=2 gpu_4x_a6000=4",
    "quadro-rtx-6000": "gpu_1x_rtx6000",
    "rtx-pro-6000": "g4-standard-48 g4-standard-96=2 g4-standard-192=4 g4-standard-384=8",
}

#: what may precede a name: Azure's tier, SageMaker's kind
_PREFIXES = re.compile("standard_|ml[.]", re.IGNORECASE)

#: machines that have whatever is attached to them
_ATTACHED = re.compile("n1-(standard|highmem|highcpu|megamem|ultramem)-[0-9]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine type of a cloud."""

    #: as the cloud writes it
    name: str
    #: its GPU's name in the catalogue
    gpu: str
    count: int
    #: how much of the GPU's memory it has
    share: Fraction

    @property
    def note(self) -> str:
        """What a name of the machine means for an answer about one GPU."""
        if self.share < 1:
            return f"{self.name} has {self.share} of the memory of one {self.gpu}"
        if self.count == 1:
            return f"{self.name} has one {self.gpu}"
        return f"{self.name} has {self.count} of {self.gpu}; the answer is for each of them"


def find_machine(text: str) -> Machine | None:
    """Return the machine type that a name is; None if it is not a known one."""
    return _machines().get(_PREFIXES.sub("", text.strip(), count=1).lower())


def has_attached_gpus(text: str) -> bool:
    """Say whether a name is that of a machine whose GPU it does not tell."""
    return _ATTACHED.fullmatch(text.strip()) is not None


def list_machines(gpu: str) -> list[str]:
    """Return the machine types that have a GPU."""
    return [one.name for one in _machines().values() if one.gpu == gpu]


@cache
def _machines() -> dict[str, Machine]:
    found = (
        _machine(gpu, *entry.partition("=")[::2])
        for gpu, entries in _MACHINES.items()
        for entry in entries.split()
    )
    return {one.name.lower(): one for one in found}


def _machine(gpu: str, name: str, number: str) -> Machine:
    amount = Fraction(number or 1)
    return Machine(name=name, gpu=gpu, count=max(1, int(amount)), share=min(amount, Fraction(1)))
