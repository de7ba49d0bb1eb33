"""The catalogue of GPUs: what a job can be asked to fit on.

``table`` has the figures and their sources, ``names`` finds a GPU by what people and tools call it,
``instances`` knows clouds' machines, ``foreign`` the GPUs of others, ``own`` reads the operator's
entries, ``requests`` is a GPU as a caller asks for it.
"""

from memgate.gpus.catalogue import (
    BUILT_IN,
    CATALOGUE,
    digest_own_gpus,
    find_reports,
    list_gpus,
    use_own_gpus,
)
from memgate.gpus.instances import find_machine, list_machines
from memgate.gpus.names import (
    describe_machine,
    find_gpu,
    find_product,
    find_products,
    gpu_of_machine,
)
from memgate.gpus.requests import GpuRequest, GpuTarget, parse_gpu
from memgate.gpus.spec import GpuSpec, MemoryReports

__all__ = [
    "BUILT_IN",
    "CATALOGUE",
    "GpuRequest",
    "GpuSpec",
    "GpuTarget",
    "MemoryReports",
    "describe_machine",
    "digest_own_gpus",
    "find_gpu",
    "find_machine",
    "find_product",
    "find_products",
    "find_reports",
    "gpu_of_machine",
    "list_gpus",
    "list_machines",
    "parse_gpu",
    "use_own_gpus",
]
