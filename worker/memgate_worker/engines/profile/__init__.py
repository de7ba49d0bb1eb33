"""The profile engine: a job runs on the CPU under ``torch.profiler``, and its trace is analysed."""
