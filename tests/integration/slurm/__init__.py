"""Jobs on a real Slurm, with a real memgate."""
