"""Programs that run in other environments than ours, for `test_environments.py`."""
