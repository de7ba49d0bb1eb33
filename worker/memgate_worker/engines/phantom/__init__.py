"""The phantom engine: real CUDA PyTorch on a GPU that is not there."""
