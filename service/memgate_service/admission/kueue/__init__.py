"""Answers the admission checks of Kueue."""
