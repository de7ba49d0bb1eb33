"""Job specs: JSON or YAML -> ``JobSpec``. Read ``spec`` first; the other modules are its parts."""

from memgate.jobspec.adapters import (
    LoraSpec,
    QuantizationLibrary,
    QuantizationMethod,
    QuantizationSpec,
)
from memgate.jobspec.attention import Attention
from memgate.jobspec.distributed import (
    DistributedSpec,
    MixedPrecisionSpec,
    Schedule,
    Strategy,
    Wrap,
)
from memgate.jobspec.inputs import InputSpec, TensorSpec
from memgate.jobspec.model import ModelSource, ModelSpec, find_architecture
from memgate.jobspec.optimizer import OptimizerSpec
from memgate.jobspec.parts import AllocatorText
from memgate.jobspec.spec import (
    DEVICE_OF_A_JOB,
    INFERENCE_OF_A_JOB,
    JobSpec,
    check_supported,
    parse_job_spec,
)
from memgate.jobspec.training import (
    CompileSpec,
    EvalSpec,
    Loss,
    OffloadSpec,
    Precision,
    Trainer,
    ZeroGrad,
)

__all__ = [
    "DEVICE_OF_A_JOB",
    "INFERENCE_OF_A_JOB",
    "AllocatorText",
    "Attention",
    "CompileSpec",
    "DistributedSpec",
    "EvalSpec",
    "InputSpec",
    "JobSpec",
    "LoraSpec",
    "Loss",
    "MixedPrecisionSpec",
    "ModelSource",
    "ModelSpec",
    "OffloadSpec",
    "OptimizerSpec",
    "Precision",
    "QuantizationLibrary",
    "QuantizationMethod",
    "QuantizationSpec",
    "Schedule",
    "Strategy",
    "TensorSpec",
    "Trainer",
    "Wrap",
    "ZeroGrad",
    "check_supported",
    "find_architecture",
    "parse_job_spec",
]
