"""Stand-ins for programs by which a job would act on its cluster: none of them reaches anything.

``srun`` runs its command here, as one process of those that it would start; what submits or cancels
jobs, or reaches other machines, says that it does nothing, and succeeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

#: where clusters have Slurm, beside what the job's PATH names
_USUAL = ("/usr/bin", "/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin")

_IDLE = """#!/bin/sh
echo "memgate: ${0##*/} does nothing in a rehearsal" >&2
exit 0
"""

_SBATCH = """#!/bin/sh
echo "memgate: sbatch submits nothing in a rehearsal" >&2
case " $* " in *" --parsable "*) echo 0 ;; *) echo "Submitted batch job 0" ;; esac
exit 0
"""

#: scripts look up their first node with it
_SCONTROL = """#!/bin/sh
case "$1 $2" in
  "show hostname"|"show hostnames") echo localhost; exit 0 ;;
esac
echo "memgate: scontrol does nothing in a rehearsal" >&2
exit 0
"""

#: options that take no value, or only one with "="; all other long ones take one
_SRUN = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    --) shift; break ;;
    --multi-prog) echo "memgate: srun --multi-prog is not followed" >&2; exit 1 ;;
    --ntasks=*) SLURM_NTASKS=${1#*=}; shift ;;
    -n|--ntasks) SLURM_NTASKS=$2; shift 2 ;;
    -n*) SLURM_NTASKS=${1#-n}; shift ;;
    --*=*) shift ;;
    --contiguous|--debugger-test|--disable-status|--exact|--exclusive|--export|--hold) shift ;;
    --immediate|--interactive|--kill-on-bad-exit|--label|--nice|--no-allocate) shift ;;
    --no-kill|--no-requeue|--overcommit|--overlap|--oversubscribe|--preserve-env) shift ;;
    --propagate|--pty|--quiet|--reboot|--resv-ports|--send-libs|--spread-job) shift ;;
    --test-only|--unbuffered|--use-min-nodes|--verbose|--wait-all-nodes|--whole|--x11) shift ;;
    --bcast|--get-user-env) shift ;;
    --*) shift 2 ;;
    -[ABcCdDeFGiIJLmMNopqrRStTwWxz]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || exit 0
for word; do
  [ "$word" != : ] || { echo "memgate: srun with several parts is not followed" >&2; exit 1; }
done
SLURM_NTASKS=${SLURM_NTASKS:-1}
SLURM_PROCID=${SLURM_PROCID:-0}
SLURM_LOCALID=${SLURM_LOCALID:-0}
SLURM_NODEID=${SLURM_NODEID:-0}
SLURM_STEP_NUM_TASKS=$SLURM_NTASKS
SLURM_STEP_ID=0
export SLURM_NTASKS SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_NUM_TASKS SLURM_STEP_ID
exec "$@"
"""

_TEXTS = {
    "srun": _SRUN,
    "sbatch": _SBATCH,
    "scontrol": _SCONTROL,
    **dict.fromkeys(
        (
            *("salloc", "scancel", "sattach", "sbcast", "strigger", "sacctmgr", "scrontab"),
            *("squeue", "sinfo", "sacct", "sstat", "sprio", "sreport", "ssh", "scp", "sftp"),
            *("rsync", "crontab", "at", "batch", "systemd-run", "qsub", "bsub"),
        ),
        _IDLE,
    ),
}


def write_programs(folder: Path) -> None:
    """Write the stand-ins into a new folder."""
    folder.mkdir()
    for name, text in _TEXTS.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)


def find_programs(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the programs that have stand-ins, by name, wherever a job may find them."""
    folders = [*environment.get("PATH", os.defpath).split(os.pathsep), *_USUAL]
    seen = set()
    for folder in folders:
        for name in _TEXTS:
            path = Path(folder, name)
            # a folder that the job's owner may not look into has no programs
            is_found = folder.startswith("/") and os.path.isfile(path)
            if is_found and path.resolve() not in seen:
                seen.add(path.resolve())
                yield name, path.resolve()
