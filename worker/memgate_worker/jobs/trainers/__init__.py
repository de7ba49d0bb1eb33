"""The trainers of libraries, which run their own loops on a model and data of ours.

    choosing      a spec -> the job that its trainer runs; the door
    samples       a batch -> samples, and how they become batches again
    settings      a spec -> the arguments of transformers' trainers
    hf_optimizer  an optimizer, made as transformers' Trainer makes it
    hf            transformers' Trainer
    trl           trl's SFTTrainer
    lightning     Lightning's Trainer

Nothing of a library is changed except which samples come in which order, where an optimizer comes
from, and that the bytes of a checkpoint are not written. All of them run on the phantom alone.
"""
