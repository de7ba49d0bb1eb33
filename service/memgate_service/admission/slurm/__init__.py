"""Next to Slurm's controller: releases held jobs, reports what jobs took. See docs/slurm.md."""
