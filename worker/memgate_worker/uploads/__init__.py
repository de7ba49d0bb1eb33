"""Files that people hand in, read and judged in a process of their own."""
