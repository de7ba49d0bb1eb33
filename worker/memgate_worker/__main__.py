"""``python -m memgate_worker``."""

from memgate_worker.main import main

main()
