"""What runs jobs: torch and the queue live here and nowhere else."""
