"""The scores that memgate brings: by how much more than estimated measured jobs had when they died.

Computed from the runs of docs/accuracy.md with the runtime ``torch-2.6``, so that library versions
are those that the jobs ran with (``scores`` of ``memgate accuracy --json``). One score for each job
that died under some cap, with the largest of those caps; the estimate has the most that cuDNN's
workspaces may add.
"""

from __future__ import annotations

from collections.abc import Iterator

from memgate.margins import DeathScore, Family

#: by GPU, family and model: hundredths of a percent, rounded up
_EXCESS = """\
NVIDIA A100-SXM4-40GB|other|Qwen/Qwen3-4B|-371 -371 -369
NVIDIA GeForce RTX 3060|convolution|ConvNeXtBase|-3299 -3299 -2979 -2923 -2546 -2539 -2280 -2114
NVIDIA GeForce RTX 3060|convolution|ConvNeXtBase|-2066 -1990 -1983 -1699 -682
NVIDIA GeForce RTX 3060|convolution|ConvNeXtTiny|-2636 -2585 -2541 -2440 -2351 -2132 -2000 -1568
NVIDIA GeForce RTX 3060|convolution|ConvNeXtTiny|-1026 -939 -729 -571 -545 -379 -179 -156
NVIDIA GeForce RTX 3060|convolution|MobileNetV2|-2201
NVIDIA GeForce RTX 3060|convolution|MobileNetV3Small|-1034 -962
NVIDIA GeForce RTX 3060|convolution|ResNet152|-330
NVIDIA GeForce RTX 3060|convolution|VGG16|-1526
NVIDIA GeForce RTX 3060|other|EleutherAI/gpt-neo-125M|-4149 -3609 -2461 -2062 -1811 -1677 -1576
NVIDIA GeForce RTX 3060|other|EleutherAI/gpt-neo-125M|-1450 -1450 -808 -790 -442 -307 -301 -269
NVIDIA GeForce RTX 3060|other|EleutherAI/gpt-neo-125M|-239 -239 -239 -48 -9 32
NVIDIA GeForce RTX 3060|other|T5-small|-5572 -4345 -4096 -3947 -3879 -3475 -3469 -2939 -1996
NVIDIA GeForce RTX 3060|other|T5-small|-1996 -1948 -647 -506 -481 -401 -286 -286 -246 -218 -212
NVIDIA GeForce RTX 3060|other|T5-small|-212 -175 81
NVIDIA GeForce RTX 3060|other|cerebras/Cerebras-GPT-111M|-2507 -1782 -1480 -1314 -1095 -1095
NVIDIA GeForce RTX 3060|other|cerebras/Cerebras-GPT-111M|-651 -559
NVIDIA GeForce RTX 3060|other|facebook/opt-125m|-6431 -5425
NVIDIA GeForce RTX 3060|other|openai-community/gpt2|-7611 -1817 -1717
NVIDIA GeForce RTX 3060|other|t5-base|-8503 -8103
NVIDIA GeForce RTX 4060|convolution|ConvNeXtBase|-443
NVIDIA GeForce RTX 4060|convolution|ConvNeXtTiny|-2389 -2147 -1472 -1406 -153
NVIDIA GeForce RTX 4060|convolution|MobileNetV2|-2211 -1951 -1552
NVIDIA GeForce RTX 4060|convolution|MobileNetV3Small|-1046
NVIDIA GeForce RTX 4060|convolution|VGG16|-1784
NVIDIA GeForce RTX 4060|other|EleutherAI/gpt-neo-125M|-7718 -6786 -3818 -2107 -1934 -1738 -1169
NVIDIA GeForce RTX 4060|other|EleutherAI/gpt-neo-125M|-931 -262
NVIDIA GeForce RTX 4060|other|T5-small|-7688 -6548 -4673 -4038 -3456 -2579 -65 64
NVIDIA GeForce RTX 4060|other|cerebras/Cerebras-GPT-111M|-2052 -1403
NVIDIA GeForce RTX 4060|other|facebook/opt-125m|-4761
NVIDIA GeForce RTX 4060|other|openai-community/gpt2|-7223
NVIDIA GeForce RTX 4060|other|t5-base|-8545
"""


def _read() -> Iterator[DeathScore]:
    for line in _EXCESS.splitlines():
        gpu, family, model, scores = line.split("|")
        for excess in scores.split():
            yield DeathScore(gpu, Family(family), model, int(excess) / 10_000)


SCORES: tuple[DeathScore, ...] = tuple(_read())
