"""Jobs on many GPUs: torch's own code divides the model, in one process on behalf of one rank.

Read ``dividing`` first. The process group has all of the job's ranks; the others do not exist, and
the stand-in for NCCL answers for them.
"""
