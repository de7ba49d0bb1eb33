"""The doors of memgate: the command line, the HTTP service, and the gates of clusters."""
