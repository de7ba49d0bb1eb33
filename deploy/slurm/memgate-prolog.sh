#!/bin/sh
# Slurm's Prolog on compute nodes: memgate begins to measure a job's GPU memory. docs/slurm.md.
# It never fails, and takes 10 s at the most: a prolog that fails drains the node.
MEMGATE=${MEMGATE:-/opt/memgate/bin/memgate}
[ -z "$SLURM_JOB_GPUS" ] || timeout 10 "$MEMGATE" slurm prolog
exit 0
