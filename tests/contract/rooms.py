"""The rooms of the service and of the worker, and the ways between them."""

from __future__ import annotations

#: the rooms of the service, and which others each may import: there is no way back. A room is a
#: package; modules called ``settings`` are the room ``settings``, wherever they are
SERVICE_ROOMS: dict[str, set[str]] = {
    "admission.core": set(),
    "settings": {"admission.core"},
    "admission.kubernetes": {"settings", "admission.core"},
    "admission.kueue": {"settings", "admission.core", "admission.kubernetes"},
    "admission.slurm": {"admission.core"},
    "http": {"settings", "admission.core", "admission.kubernetes"},
    "http.routes": {"settings", "http", "admission.kubernetes"},
    "dashboard": {"settings", "http", "http.routes"},
    "cli": {"settings"},
    "cli.commands": {
        *("settings", "cli", "http"),
        *("admission.core", "admission.kubernetes", "admission.kueue", "admission.slurm"),
    },
    # what assembles the service
    "http.app": {"settings", "http", "http.routes", "dashboard", "admission.kubernetes"},
    "__main__": {"settings", "http", "http.app", "dashboard"},
}

WORKER_ROOMS: dict[str, set[str]] = {
    "family": set(),
    "lifeline": set(),
    "limits": set(),
    "own_gpus": set(),
    "logs": set(),
    "jobs": {"hook"},
    "guard": set(),
    "sandbox": set(),
    "queue": {"limits", "own_gpus"},
    # the compiler's part of the phantom: a runtime is built before anything runs in it
    "hook": set(),
    "standins": {"hook"},
    "runtimes": {"standins"},
    "packing": {"guard", "standins"},
    "engines": {"family", "hook", "jobs", "lifeline", "limits", "runtimes", "standins"},
    # what a hub says of a model, if the operator allows to ask one
    "hub": {"engines", "jobs"},
    # how a job is run on the GPUs that it gets, if it does not say it
    "dividing": {"engines"},
    "batch_search": {"engines"},
    "verdicts": {"batch_search", "engines", "runtimes"},
    "devices": {"engines", "timings", "verdicts"},
    "snapshots": {"devices", "engines", "timings"},
    "timings": {"engines", "verdicts"},
    "timelines": {"engines"},
    "recordings": {"engines", "timings"},
    "uploads": {
        *("devices", "engines", "lifeline", "own_gpus", "recordings", "snapshots", "timelines"),
        "timings",
    },
    "recorder": {
        *("batch_search", "engines", "family", "guard", "hook", "jobs", "limits"),
        *("runtimes", "standins", "verdicts"),
    },
    "local": {
        *(
            "dividing",
            "engines",
            "hook",
            "hub",
            "limits",
            "own_gpus",
            "recorder",
            "recordings",
            "runtimes",
        ),
        *("timings", "uploads", "verdicts"),
    },
    "rehearsal": {"limits", "local", "sandbox"},
    "settings": {"hub", "limits", "queue", "uploads"},
    "health": {"queue"},
    "answers": {
        *(
            "dividing",
            "engines",
            "hub",
            "queue",
            "runtimes",
            "settings",
            "timelines",
            "timings",
            "uploads",
        ),
        "verdicts",
    },
    "tasks": {"answers", "engines", "queue", "settings"},
    "main": {"answers", "engines", "health", "logs", "queue", "runtimes", "settings", "tasks"},
    "__main__": {"main"},
}
