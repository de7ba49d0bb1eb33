"""Programs that run in other environments than ours; see `tests/integration/test_environments.py`."""
