"""The variables of a command that runs on the phantom: the person's own, and ours beside them."""

from __future__ import annotations

import os
from pathlib import Path

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


def command_environment(question: CommandQuestion, run_dir: Path) -> dict[str, str]:
    """Return the environment of a command; nothing of the person's own is lost."""
    own = dict(question.environment)
    python_path = [str(HOOK_DIR), *filter(None, [own.get("PYTHONPATH")])]
    ours = {
        "MEMGATE_RUN_DIR": str(run_dir),
        "MEMGATE_IGNORE_COMPILE": "1" if question.ignores_compile else "0",
        "PYTHONPATH": os.pathsep.join(python_path),
        **question.watch.to_environment(),
        **describe_device(question.gpu),
    }
    if not question.is_online:
        ours |= OFFLINE
        ours["MLFLOW_TRACKING_URI"] = (run_dir / "mlruns").as_uri()
    return own | ours
