"""The pages at ``/``: what is asked, what was refused and why, and how accurate and fast we are."""
