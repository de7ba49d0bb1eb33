"""Small training jobs, recorded in the styles in which people record theirs."""
