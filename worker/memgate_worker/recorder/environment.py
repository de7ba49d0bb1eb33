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


def command_environment(question: CommandQuestion, scratch: Path) -> dict[str, str]:
    """Return the environment of a command; the guard adds its own, and the hook's."""
    ours = {
        "MEMGATE_IGNORE_COMPILE": "1" if question.ignores_compile else "0",
        DATA_SIZES: question.data_sizes,
        **question.watch.to_environment(),
        **describe_device(question.gpu),
    }
    if not question.is_online:
        ours |= OFFLINE
        ours["MLFLOW_TRACKING_URI"] = (scratch / "mlruns").as_uri()
    return dict(question.environment) | ours
