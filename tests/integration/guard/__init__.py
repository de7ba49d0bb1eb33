"""The guard, with real programs and real files."""
