"""A ControlNet with the U-Net that it steers: both are on the GPU, and one of them is trained.

What a ControlNet makes means nothing by itself: its gradients come through the U-Net, which is
frozen. diffusers makes a ControlNet out of a U-Net, of whose configuration it keeps everything but
the way up; that mirrors the way down. A ControlNet of a transformer does not say how deep that is.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn


class Steering(nn.Module):
    """A ControlNet that is trained, and a frozen U-Net."""

    def __init__(self, controlnet: Any, steered: nn.Module) -> None:
        super().__init__()
        self.controlnet = controlnet
        self.steered = steered.requires_grad_(False)
        self.config = controlnet.config

    def enable_gradient_checkpointing(self) -> None:
        """Compute what is trained anew in the backward pass, as the script of diffusers does."""
        self.controlnet.enable_gradient_checkpointing()

    def forward(self, controlnet_cond: torch.Tensor, **given: Any) -> Any:
        """Return what the U-Net makes of a latent, steered by a picture."""
        down, middle = self.controlnet(**given, controlnet_cond=controlnet_cond, return_dict=False)
        return self.steered(
            **given,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
            return_dict=False,
        )


def steer(controlnet: Any, unet_class: Any) -> Steering:
    """Build the U-Net that a ControlNet was made out of, and join them."""
    known = inspect.signature(unet_class.__init__).parameters
    settings = {name: value for name, value in controlnet.config.items() if name in known}
    way_down = controlnet.config.down_block_types
    settings["up_block_types"] = [one.replace("Down", "Up") for one in reversed(way_down)]
    settings["out_channels"] = controlnet.config.in_channels
    return Steering(controlnet, unet_class(**settings))
