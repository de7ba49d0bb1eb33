"""Models of diffusers with a training recipe, made small. It prints JSON, as ``task_jobs`` does.

    python diffusion_jobs.py diffusers [NAME...]   ->  {"name": [spec], ...}

Configurations are the default ones with few layers; inputs are as in the pipeline of each model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_SMALL_UNET = {"block_out_channels": [32, 64], "layers_per_block": 1, "norm_num_groups": 8}
_DOWN_UP = {
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}
_DOWN_UP_3D = {
    "down_block_types": ["CrossAttnDownBlock3D", "DownBlock3D"],
    "up_block_types": ["UpBlock3D", "CrossAttnUpBlock3D"],
}
_DOWN_UP_MOTION = {
    "down_block_types": ["CrossAttnDownBlockMotion", "DownBlockMotion"],
    "up_block_types": ["UpBlockMotion", "CrossAttnUpBlockMotion"],
}
_DOWN_UP_TIME = {
    "down_block_types": ["CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"],
    "up_block_types": ["UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"],
}
_CODER = {
    "block_out_channels": [32, 64],
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
    "norm_num_groups": 8,
}
_SDXL = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 32,
    "projection_class_embeddings_input_dim": 6 * 32 + 64,
}
_TWO = {"num_layers": 2}
_FLUX = {"num_layers": 1, "num_single_layers": 1}

_LATENT = {"shape": [4, 32, 32]}
_LATENT_16 = {"shape": [16, 32, 32], "sequence_length": 64}
_VIDEO = {"shape": [16, 5, 32, 32], "sequence_length": 64}
_IMAGE = {"shape": [3, 64, 64]}
_FILM = {"shape": [3, 9, 64, 64]}

#: class -> its configuration and input
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "AllegroTransformer3DModel": (_TWO, {"shape": [4, 5, 32, 32], "sequence_length": 64}),
    "AsymmetricAutoencoderKL": ({}, _IMAGE),
    "AuraFlowTransformer2DModel": (
        {"num_mmdit_layers": 1, "num_single_dit_layers": 1, "sample_size": 32},
        {"sequence_length": 64},
    ),
    "AutoencoderDC": (
        {
            "encoder_block_out_channels": [32, 64],
            "decoder_block_out_channels": [32, 64],
            "encoder_layers_per_block": [1, 1],
            "decoder_layers_per_block": [1, 1],
            "encoder_qkv_multiscales": [[], []],
            "decoder_qkv_multiscales": [[], []],
        },
        _IMAGE,
    ),
    "AutoencoderKL": (_CODER, _IMAGE),
    "AutoencoderKLAllegro": ({}, {"shape": [3, 8, 64, 64]}),
    "AutoencoderKLCogVideoX": ({}, _FILM),
    "AutoencoderKLHunyuanVideo": ({}, _FILM),
    "AutoencoderKLLTXVideo": ({}, _FILM),
    "AutoencoderKLMochi": ({}, {"shape": [3, 7, 64, 64]}),
    "AutoencoderKLTemporalDecoder": ({}, _IMAGE),
    "AutoencoderKLWan": ({}, _FILM),
    "AutoencoderTiny": ({}, _IMAGE),
    "BriaTransformer2DModel": (_FLUX, {"shape": [16, 32, 32], "sequence_length": 64}),
    "ChromaTransformer2DModel": (_FLUX, _LATENT_16),
    "CogVideoXTransformer3DModel": (
        _TWO | {"sample_frames": 9, "sample_width": 32, "sample_height": 32},
        {},
    ),
    "CogView3PlusTransformer2DModel": (_TWO, _LATENT_16),
    "CogView4Transformer2DModel": (_TWO, _LATENT_16),
    "ControlNetModel": (
        _SMALL_UNET | {"down_block_types": _DOWN_UP["down_block_types"]},
        _LATENT,
    ),
    "CosmosTransformer3DModel": (_TWO, _VIDEO),
    "DiTTransformer2DModel": (_TWO, {}),
    "Flux2Transformer2DModel": (_FLUX, {"shape": [32, 32, 32], "sequence_length": 64}),
    "FluxControlNetModel": (_FLUX, _LATENT_16),
    "FluxTransformer2DModel": (_FLUX | {"guidance_embeds": True}, _LATENT_16),
    "HunyuanDiT2DModel": (
        _TWO | {"in_channels": 4, "patch_size": 2, "attention_head_dim": 72},
        {},
    ),
    "HunyuanVideoTransformer3DModel": (_FLUX | {"num_refiner_layers": 1}, _VIDEO),
    "I2VGenXLUNet": (
        _SMALL_UNET | _DOWN_UP_3D | {"attention_head_dim": 8},
        {"shape": [4, 4, 32, 32]},
    ),
    "Kandinsky3UNet": ({}, _LATENT),
    "Kandinsky5Transformer3DModel": (
        {"num_text_blocks": 1, "num_visual_blocks": 1},
        {"shape": [5, 32, 32, 4], "sequence_length": 64},
    ),
    "LTXVideoTransformer3DModel": (_TWO, {"shape": [128, 3, 8, 8], "sequence_length": 64}),
    "LatteTransformer3DModel": (
        {
            **_TWO,
            "in_channels": 4,
            "patch_size": 2,
            "caption_channels": 128,
            "num_embeds_ada_norm": 1000,
            "cross_attention_dim": 1408,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
        },
        {"sequence_length": 64},
    ),
    "LuminaNextDiT2DModel": (
        _TWO | {"num_kv_heads": 8},
        {"shape": [4, 32, 32], "sequence_length": 64},
    ),
    "Lumina2Transformer2DModel": (_TWO | {"num_refiner_layers": 1}, _LATENT_16),
    "MochiTransformer3DModel": (_TWO, {"shape": [12, 5, 32, 32]}),
    "PRXTransformer2DModel": ({"depth": 2, "axes_dim": [32, 32]}, _LATENT_16),
    "PixArtTransformer2DModel": (_TWO | {"caption_channels": 4096}, {"sequence_length": 64}),
    "PriorTransformer": (_TWO, {}),
    "QwenImageTransformer2DModel": (_TWO, _LATENT_16),
    "SD3ControlNetModel": (_TWO, _LATENT_16),
    "SD3Transformer2DModel": (_TWO, {"sequence_length": 64}),
    "SanaTransformer2DModel": (_TWO, {"sequence_length": 64}),
    "SanaVideoTransformer3DModel": (_TWO, _VIDEO),
    "SkyReelsV2Transformer3DModel": (_TWO, _VIDEO),
    "StableAudioDiTModel": (_TWO, {"sequence_length": 64}),
    "StableCascadeUNet": (
        {"down_num_layers_per_block": [1, 1], "up_num_layers_per_block": [1, 1]},
        {"shape": [16, 24, 24]},
    ),
    "Transformer2DModel": (
        {"in_channels": 32, "cross_attention_dim": 64, "sample_size": 32},
        {"sequence_length": 64},
    ),
    "UNet1DModel": ({"sample_size": 4096, "extra_in_channels": 64}, {}),
    "UNet2DConditionModel": (_SMALL_UNET | _DOWN_UP | _SDXL, _LATENT),
    "UNet2DModel": (
        _SMALL_UNET
        | {
            "sample_size": 64,
            "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
            "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
        },
        {},
    ),
    "UNet3DConditionModel": (
        _SMALL_UNET | _DOWN_UP_3D | {"attention_head_dim": 8},
        {"shape": [4, 4, 32, 32]},
    ),
    "UNetMotionModel": (_SMALL_UNET | _DOWN_UP_MOTION, {"shape": [4, 4, 32, 32]}),
    "UNetSpatioTemporalConditionModel": (
        {
            "block_out_channels": [32, 64],
            "num_attention_heads": [2, 4],
            "layers_per_block": 1,
            **_DOWN_UP_TIME,
        },
        {"shape": [4, 8, 32, 32]},
    ),
    "UVit2DModel": ({"num_hidden_layers": 2, "sample_size": 16}, {"sequence_length": 77}),
    "VQModel": (_CODER, _IMAGE),
    "WanTransformer3DModel": (_TWO, _VIDEO),
    "ZImageTransformer2DModel": ({"n_layers": 2, "n_refiner_layers": 1}, _LATENT_16),
}


def diffusers_jobs(chosen: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the job specs of each class, or of some."""
    return {
        name: [
            {
                "model": {"source": "diffusers", "class": name, "config": MODELS[name][0]},
                "input": MODELS[name][1],
                "batch_size": 2,
                "iterations": 2,
            }
        ]
        for name in chosen or MODELS
    }


def main() -> None:
    """Print the jobs of all models or of some."""
    json.dump(diffusers_jobs(sys.argv[2:]), sys.stdout)


if __name__ == "__main__":
    main()
