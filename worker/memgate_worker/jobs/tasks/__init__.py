"""What a model is trained with: its batches and its loss, as they follow from the model.

    task          one way to train: a batch, a call, a loss; the door
    images        models of torchvision and timm
    feed          what a model of transformers takes, and how large it is
    demands       what its forward raises for, and how its docstring describes tensors
    inputs        its inputs: text, images, sound, series
    described     inputs that only the docstring describes
    placeholders  text with images in it
    shapes        runs a part of a model for the shapes that it returns
    contrast      texts that belong together: embeddings
    latents       what a model of diffusers takes, and how large it is
    conditions    what tells it what to make: text, sizes, positions
    denoising     its training: the noise in a latent, or an image made again
    labels        its labels, by the task in the name of its class

A model that none of them can feed is refused with what is missing.
"""
