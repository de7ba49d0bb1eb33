"""On compute nodes, in Slurm's prolog and epilog: what a job took of its GPUs. docs/slurm.md."""
