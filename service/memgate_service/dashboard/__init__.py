"""The pages at ``/``: what is asked, what was refused and why, whether we are right and quick."""
