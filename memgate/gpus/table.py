"""The data of the catalogue: one row for each GPU, and what was reported of its memory.

The memory is the lowest total that PyTorch shows in public reports, since a job must fit in that:
ECC, the driver's version and the operating system change it. The highest is mostly the driver's own
total (``nvidia-smi``), of which a job cannot get all; on Windows PyTorch shows that, too. A report
with one decimal counts as the lowest figure that is rounded to it. Multiprocessors and compute
capability are as generally known; those of the cards that memgate is measured on were checked.
"""

from __future__ import annotations

from typing import NamedTuple

from memgate.units import GIB, MIB


class GpuRow(NamedTuple):
    """A GPU."""

    name: str
    product: str
    memory_bytes: float
    highest_bytes: float
    capability: str
    multiprocessors: int
    source: str = "PyTorch in public reports; highest: the driver's total"
    #: None: as on the RTX 3060
    library_mib: int | None = None
    #: if a later report is lower than what the answers were calibrated with
    lowest_bytes: float | None = None


_ECC = "PyTorch in public reports, the lowest with ECC on; highest: the driver's total, ECC off"
_PAPER = "PyTorch in public reports, and the runs that memgate is measured on"
_BY_SIZE = "PyTorch in public reports that do not name the card: matched by the driver's total"
_FEW = "few public reports of PyTorch; highest: the driver's total"
_ROUNDED = "public reports of one decimal, perhaps with ECC on; highest: the driver's total"
_SLICE = "nvidia-smi mig -lgip in public reports; sizes as in NVIDIA's MIG guide"
_NO_TORCH = "no report by PyTorch; derived: the driver's total less what"


def _slices(
    card: str,
    product: str,
    capability: str,
    *parts: tuple[str, float, float, int],
    source: str = _SLICE,
) -> list[GpuRow]:
    """Return parts of a GPU: profile, lowest and highest memory, multiprocessors."""
    return [
        GpuRow(
            *(f"{card}-{part}", f"{product} MIG {part}", lowest, highest, capability, number),
            source,
        )
        for part, lowest, highest, number in parts
    ]


ROWS: tuple[GpuRow, ...] = (
    # Tesla and data centre
    GpuRow("p40", "Tesla P40", 22919 * MIB, 24576 * MIB, "6.1", 30, _ECC),
    GpuRow("p100-16", "Tesla P100-PCIE-16GB", 16280 * MIB, 16384 * MIB, "6.0", 56),
    GpuRow("v100-16", "Tesla V100-SXM2-16GB", 16130 * MIB, 16384 * MIB, "7.0", 80),
    GpuRow("v100-32", "Tesla V100-SXM2-32GB", 31.74 * GIB, 32768 * MIB, "7.0", 80),
    GpuRow(
        *("v100s-32", "Tesla V100S-PCIE-32GB", 31.74 * GIB, 32768 * MIB, "7.0", 80),
        "derived: as a V100 of 32 GB",
    ),
    GpuRow("t4", "Tesla T4", 14.56 * GIB, 15360 * MIB, "7.5", 40),
    GpuRow("a2", "NVIDIA A2", 14905 * MIB, 15356 * MIB, "8.6", 10, f"{_NO_TORCH} a T4 keeps"),
    GpuRow("a10", "NVIDIA A10", 22587 * MIB, 23028 * MIB, "8.6", 72),
    GpuRow("a10g", "NVIDIA A10G", 22587 * MIB, 23028 * MIB, "8.6", 80),
    GpuRow(
        *("a16", "NVIDIA A16", 14905 * MIB, 15356 * MIB, "8.6", 10),
        f"one of the four on a card; {_NO_TORCH} a T4 keeps",
    ),
    GpuRow("a30", "NVIDIA A30", 23.53 * GIB, 24576 * MIB, "8.0", 56),
    GpuRow("a40", "NVIDIA A40", 45416 * MIB, 48688 * MIB, "8.6", 84, _ECC),
    GpuRow("l4", "NVIDIA L4", 23583784960, 23034 * MIB, "8.9", 58),
    GpuRow("l40", "NVIDIA L40", 44.40 * GIB, 46068 * MIB, "8.9", 142),
    GpuRow(
        *("l40s", "NVIDIA L40S", 45589 * MIB, 46068 * MIB, "8.9", 142),
        lowest_bytes=44.39 * GIB,
    ),
    GpuRow("a100-40", "NVIDIA A100-SXM4-40GB", 42298834944, 40960 * MIB, "8.0", 108, _PAPER, 94),
    GpuRow("a100-80", "NVIDIA A100-SXM4-80GB", 79.15 * GIB, 81920 * MIB, "8.0", 108),
    GpuRow("a800-80", "NVIDIA A800-SXM4-80GB", 81051 * MIB, 81920 * MIB, "8.0", 108),
    GpuRow("h20", "NVIDIA H20", 97285 * MIB, 97871 * MIB, "9.0", 78),
    GpuRow("h100-pcie", "NVIDIA H100 PCIe", 81008 * MIB, 81559 * MIB, "9.0", 114),
    GpuRow("h100-80", "NVIDIA H100 80GB HBM3", 81082 * MIB, 81559 * MIB, "9.0", 132),
    GpuRow("h100-94", "NVIDIA H100 NVL", 93.00 * GIB, 95830 * MIB, "9.0", 132),
    GpuRow(
        *("h800-80", "NVIDIA H800", 81082 * MIB, 81559 * MIB, "9.0", 132),
        "derived: as an H100 of 80 GB",
    ),
    GpuRow("gh200-96", "NVIDIA GH200 480GB", 94.50 * GIB, 97871 * MIB, "9.0", 132, _BY_SIZE),
    GpuRow(
        *("gh200-144", "NVIDIA GH200 144G HBM3e", 145176 * MIB, 146831 * MIB, "9.0", 132),
        f"{_NO_TORCH} a GH200 of 96 GB keeps, in proportion",
    ),
    GpuRow("h200", "NVIDIA H200", 143156 * MIB, 143771 * MIB, "9.0", 132),
    GpuRow("b200", "NVIDIA B200", 178.35 * GIB, 183359 * MIB, "10.0", 148),
    GpuRow("gb200", "NVIDIA GB200", 184.31 * GIB, 189471 * MIB, "10.0", 152, _BY_SIZE),
    GpuRow("b300", "NVIDIA B300 SXM6 AC", 267.69 * GIB, 275040 * MIB, "10.3", 148, _BY_SIZE),
    GpuRow("gb300", "NVIDIA GB300", 276.50 * GIB, 284208 * MIB, "10.3", 152, _BY_SIZE),
    # GeForce and Titan
    GpuRow("gtx-1080-ti", "NVIDIA GeForce GTX 1080 Ti", 11177 * MIB, 11264 * MIB, "6.1", 28),
    GpuRow("titan-xp", "NVIDIA TITAN Xp", 12186 * MIB, 12288 * MIB, "6.1", 30),
    GpuRow("titan-v", "NVIDIA TITAN V", 12064 * MIB, 12288 * MIB, "7.0", 80),
    GpuRow("titan-rtx", "NVIDIA TITAN RTX", 24212 * MIB, 24576 * MIB, "7.5", 72),
    GpuRow("rtx-2080-ti", "NVIDIA GeForce RTX 2080 Ti", 11019 * MIB, 11264 * MIB, "7.5", 68),
    GpuRow("rtx-3060", "NVIDIA GeForce RTX 3060", 11931 * MIB, 12288 * MIB, "8.6", 28, _PAPER),
    GpuRow("rtx-3060-ti", "NVIDIA GeForce RTX 3060 Ti", 7833 * MIB, 8192 * MIB, "8.6", 38),
    GpuRow("rtx-3070", "NVIDIA GeForce RTX 3070", 7753 * MIB, 8192 * MIB, "8.6", 46),
    GpuRow("rtx-3080", "NVIDIA GeForce RTX 3080", 9.78 * GIB, 10240 * MIB, "8.6", 68),
    GpuRow(
        *("rtx-3080-12", "NVIDIA GeForce RTX 3080 12GB", 12117 * MIB, 12288 * MIB, "8.6", 70),
        "PyTorch in public reports, where it is called just RTX 3080; highest: the driver's total",
    ),
    GpuRow("rtx-3080-ti", "NVIDIA GeForce RTX 3080 Ti", 11910 * MIB, 12288 * MIB, "8.6", 80),
    GpuRow("rtx-3090", "NVIDIA GeForce RTX 3090", 23.68 * GIB, 24576 * MIB, "8.6", 82),
    GpuRow("rtx-3090-ti", "NVIDIA GeForce RTX 3090 Ti", 24110 * MIB, 24564 * MIB, "8.6", 84),
    GpuRow("rtx-4060", "NVIDIA GeForce RTX 4060", 8318222336, 8188 * MIB, "8.9", 24, _PAPER, 30),
    GpuRow("rtx-4060-ti-8", "NVIDIA GeForce RTX 4060 Ti 8GB", 7806 * MIB, 8188 * MIB, "8.9", 34),
    GpuRow(
        *("rtx-4060-ti-16", "NVIDIA GeForce RTX 4060 Ti 16GB", 15934 * MIB, 16380 * MIB),
        *("8.9", 34, "derived: as an RTX 4070 Ti SUPER; its own reports: 15.6 GiB and more"),
    ),
    GpuRow("rtx-4070", "NVIDIA GeForce RTX 4070", 11874 * MIB, 12282 * MIB, "8.9", 46),
    GpuRow(
        *("rtx-4070-super", "NVIDIA GeForce RTX 4070 SUPER", 11874 * MIB, 12282 * MIB),
        *("8.9", 56, "derived: as an RTX 4070"),
    ),
    GpuRow(
        *("rtx-4070-ti", "NVIDIA GeForce RTX 4070 Ti", 11874 * MIB, 12282 * MIB, "8.9", 60),
        "derived: as an RTX 4070; its own reports: 12007 MiB and more",
    ),
    GpuRow(
        *("rtx-4070-ti-super", "NVIDIA GeForce RTX 4070 Ti SUPER", 15934 * MIB, 16376 * MIB),
        *("8.9", 66),
    ),
    GpuRow(
        *("rtx-4080", "NVIDIA GeForce RTX 4080", 15934 * MIB, 16376 * MIB, "8.9", 76),
        "derived: as an RTX 4070 Ti SUPER; its own reports: 16049 MiB and more",
    ),
    GpuRow(
        *("rtx-4080-super", "NVIDIA GeForce RTX 4080 SUPER", 15944 * MIB, 16376 * MIB),
        *("8.9", 80),
    ),
    GpuRow("rtx-4090", "NVIDIA GeForce RTX 4090", 23.64 * GIB, 24564 * MIB, "8.9", 128),
    GpuRow("rtx-5070-ti", "NVIDIA GeForce RTX 5070 Ti", 15.47 * GIB, 16303 * MIB, "12.0", 70),
    GpuRow("rtx-5080", "NVIDIA GeForce RTX 5080", 15840 * MIB, 16303 * MIB, "12.0", 84),
    GpuRow("rtx-5090", "NVIDIA GeForce RTX 5090", 32089 * MIB, 32607 * MIB, "12.0", 170, _FEW),
    # Workstation
    GpuRow("quadro-rtx-6000", "Quadro RTX 6000", 22.15 * GIB, 24576 * MIB, "7.5", 72, _ROUNDED),
    GpuRow("quadro-rtx-8000", "Quadro RTX 8000", 44.45 * GIB, 49152 * MIB, "7.5", 72, _ROUNDED),
    GpuRow("rtx-a4000", "NVIDIA RTX A4000", 15.61 * GIB, 16376 * MIB, "8.6", 48),
    GpuRow("rtx-a4500", "NVIDIA RTX A4500", 19.05 * GIB, 20470 * MIB, "8.6", 56, _ROUNDED),
    GpuRow("rtx-a5000", "NVIDIA RTX A5000", 22721 * MIB, 24564 * MIB, "8.6", 64, _ECC),
    GpuRow(
        *("rtx-a5500", "NVIDIA RTX A5500", 22721 * MIB, 24564 * MIB, "8.6", 80),
        "derived: as an RTX A5000 with ECC on; its own report: 24090 MiB",
    ),
    GpuRow("rtx-a6000", "NVIDIA RTX A6000", 44.55 * GIB, 49140 * MIB, "8.6", 84, _ECC),
    GpuRow(
        "rtx-5000-ada", "NVIDIA RTX 5000 Ada Generation", 31.47 * GIB, 32760 * MIB, "8.9", 100, _FEW
    ),
    GpuRow(
        *("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 44.43 * GIB, 49140 * MIB),
        *("8.9", 142, _ECC),
    ),
    GpuRow(
        *("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell", 94.96 * GIB, 97887 * MIB, "12.0", 188),
        "PyTorch in public reports, all editions, the lowest by size; highest: the driver's total",
    ),
    # Parts of a GPU (MIG), by what a job in one of them sees
    *_slices(
        *("a30", "NVIDIA A30", "8.0"),
        ("1g.6gb", 5.81 * GIB, 5.81 * GIB, 14),
        ("2g.12gb", 11.69 * GIB, 11.69 * GIB, 28),
        ("4g.24gb", 23.44 * GIB, 23.50 * GIB, 56),
    ),
    *_slices(
        *("a100-40", "NVIDIA A100-SXM4-40GB", "8.0"),
        ("1g.5gb", 4.75 * GIB, 4.75 * GIB, 14),
        ("1g.10gb", 9.62 * GIB, 9856 * MIB, 14),
        ("2g.10gb", 9.62 * GIB, 9.75 * GIB, 28),
        ("3g.20gb", 19.50 * GIB, 19.62 * GIB, 42),
        ("4g.20gb", 19.50 * GIB, 19.62 * GIB, 56),
        ("7g.40gb", 39.25 * GIB, 39.50 * GIB, 98),
    ),
    *_slices(
        *("a100-80", "NVIDIA A100-SXM4-80GB", "8.0"),
        ("1g.10gb", 9728 * MIB, 9.75 * GIB, 14),
        ("2g.20gb", 19968 * MIB, 19.62 * GIB, 28),
        ("3g.40gb", 39.25 * GIB, 39.50 * GIB, 42),
        ("4g.40gb", 39.25 * GIB, 39.50 * GIB, 56),
        ("7g.80gb", 78.50 * GIB, 79.25 * GIB, 98),
    ),
    *_slices(
        *("h100-80", "NVIDIA H100 80GB HBM3", "9.0"),
        ("1g.10gb", 9.75 * GIB, 9.75 * GIB, 16),
        ("1g.20gb", 19.62 * GIB, 19.62 * GIB, 26),
        ("2g.20gb", 19.62 * GIB, 19.62 * GIB, 32),
        ("3g.40gb", 39.50 * GIB, 39.50 * GIB, 60),
        ("4g.40gb", 39.50 * GIB, 39.50 * GIB, 64),
        ("7g.80gb", 79.25 * GIB, 79.25 * GIB, 132),
    ),
    *_slices(
        *("h200", "NVIDIA H200", "9.0"),
        ("1g.18gb", 16.00 * GIB, 16.00 * GIB, 16),
        ("2g.35gb", 32.50 * GIB, 32.50 * GIB, 32),
    ),
    *_slices(
        *("h200", "NVIDIA H200", "9.0"),
        ("3g.71gb", 74625056768, 74893492224, 60),
        source="PyTorch and profilers in public reports",
    ),
    *_slices(
        *("h200", "NVIDIA H200", "9.0"),
        ("4g.71gb", 74625056768, 74893492224, 64),
        source="derived: as 3g.71gb, of the same memory",
    ),
    *_slices(
        *("b200", "NVIDIA B200", "10.0"),
        ("1g.23gb", 20.50 * GIB, 20.50 * GIB, 18),
        ("1g.45gb", 44.25 * GIB, 44.25 * GIB, 30),
        ("2g.45gb", 44.25 * GIB, 44.25 * GIB, 36),
    ),
)
