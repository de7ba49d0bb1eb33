"""The gate of a Kubernetes cluster."""
