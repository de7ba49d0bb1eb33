#!/bin/sh
# Slurm's Epilog on compute nodes: memgate says what a job took of its GPUs. docs/slurm.md.
# It never fails, and takes 20 s at the most: an epilog that fails drains the node.
MEMGATE=${MEMGATE:-/opt/memgate/bin/memgate}
MEMGATE_URL=${MEMGATE_URL:-http://127.0.0.1:8080}
export MEMGATE_URL
key=/etc/slurm/memgate-users.key
[ -r "$key" ] && set -- --key-file "$key" || set --
[ -z "$SLURM_JOB_GPUS" ] || timeout 20 "$MEMGATE" slurm epilog "$@"
exit 0
