"""The tests. Builders with defaults: ``builders``. Hypothesis strategies: ``strategies``."""
