"""Beside Slurm's controller: release what was held, report what jobs took. See docs/slurm.md."""
