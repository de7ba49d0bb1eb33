"""What is shipped: the wheel, the images, the Helm chart, the examples for Kubernetes."""
