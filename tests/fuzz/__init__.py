"""Coverage-guided fuzzing of everything that reads a stranger's bytes; `make fuzz`."""
