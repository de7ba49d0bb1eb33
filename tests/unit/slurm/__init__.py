"""What runs beside or inside Slurm, without a Slurm."""
