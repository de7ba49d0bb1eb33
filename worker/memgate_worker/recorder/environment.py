"""The variables of a command that runs on the phantom: the person's own, and ours beside them."""

from __future__ import annotations

from pathlib import Path

from memgate_worker.engines.phantom.data_sizes import DATA_SIZES
from memgate_worker.engines.phantom.engine import describe_device
from memgate_worker.hook import memgate_hook
from memgate_worker.recorder.question import CommandQuestion

#: goes to the front of ``PYTHONPATH``
HOOK_DIR = Path(memgate_hook.__file__).parent.parent

#: what reports to a server or uploads to one, put into offline mode by its own variables
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


#: where torch.compile and Triton keep what they compile, and what they found to be fast
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

#: which torchrun takes for arguments that it is not given
_TORCHRUNS_OWN = ("PET_NPROC_PER_NODE", "PET_NNODES")


def command_environment(
    question: CommandQuestion, scratch: Path, *, is_protected: bool
) -> dict[str, str]:
    """Return the environment of a command; the guard adds its own, and the hook's.

    Args:
        question: the command.
        scratch: a folder of the run's own.
        is_protected: what the command writes is kept apart.
    """
    ours = {
        "MEMGATE_IGNORE_COMPILE": "1" if question.ignores_compile else "0",
        "MEMGATE_LONGEST": str(question.longest or ""),
        DATA_SIZES: question.data_sizes,
        **question.watch.to_environment(),
        **describe_device(question.gpu),
        **_rank_variables(question),
    }
    if not is_protected:
        # Times mean nothing here: a job on a real GPU must never find what they led to.
        ours |= {name: str(scratch / "compiled" / name.lower()) for name in _CACHES}
    if not question.is_online:
        ours |= OFFLINE
        ours["MLFLOW_TRACKING_URI"] = (scratch / "mlruns").as_uri()
    return dict(question.environment) | ours


def _rank_variables(question: CommandQuestion) -> dict[str, str]:
    """Return which process of a job is run, and what launchers fill in that say nothing else."""
    variables = {
        "MEMGATE_RANK": str(question.rank),
        "MEMGATE_NPROC": str(question.nproc or ""),
        "MEMGATE_NNODES": str(question.nnodes or ""),
    }
    if num_devices := question.num_devices or question.nproc:
        variables["MEMGATE_PHANTOM_DEVICES"] = str(num_devices)
    for name, asked in zip(_TORCHRUNS_OWN, (question.nproc, question.nnodes), strict=True):
        if asked and name not in question.environment:
            variables[name] = str(asked)
    if question.given_world is not None:
        variables |= question.given_world.variables(question.rank, question.environment)
    return variables
