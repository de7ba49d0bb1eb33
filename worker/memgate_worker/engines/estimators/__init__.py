"""Estimators of others as engines: they can be asked, and are never chosen."""
