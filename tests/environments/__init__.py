"""Programs that run in other environments; see `tests/integration/test_environments.py`."""
