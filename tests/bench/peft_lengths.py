"""The lengths of the batches that peft's comparison of its methods trains on, by a rule.

One sequence for all rows. The text itself (MetaMathQA) cannot be had here; used is what is public
about it, and no figure of memory:

* **The bulk.** Every result file has the number of tokens in each 250 steps, the same in all of
  them. 4,198,051 tokens with one end of text for each of the 20,000 samples: 208.9 on average. The
  20 sums of 1,000 samples deviate by 2,993, so one sample deviates by 94.7. Taken as log-normal.
* **The tail** is cut by a limit of characters, so that no log-normal describes it. The script's
  data.py says where: texts above 1,304 characters must be left out for none to have more than 768
  tokens, and 93.8 % of 395,000 remain. So the longest of 370,510 has 768. How quickly the number
  falls before that is taken from texts of the same kind, problems and solutions of the MATH data
  set (its 5,000 of the test split, Llama 3's own tokenizer, the script's words around the question,
  no text above 1,300 characters): beyond the 99th percentile the excess is 33 tokens on average,
  beyond the 99.5th it is 39. Taken as exponential with 36.
* Of a length, the smaller of both shares counts. They meet at about 450 tokens.

The script takes 80 samples at a time, sorts them from long to short, makes 20 batches of 4 of them
and pads each to its longest. It logs what is reserved after each of its 5,000 steps. The 99th
percentile of that is the 51st largest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from statistics import NormalDist

MEAN, DEVIATION = 208.9, 94.7
LONGEST, OF_SAMPLES = 768, 370_510
EXCESS = 36.0

_NUM_SAMPLES, _NUM_STEPS = 20_000, 5_000
_BATCH, _BUCKET = 4, 80
#: steps between two calls of ``empty_cache``, since November 2025; before, it was called after each
GROUP = 10
#: counted from the largest
_RANK = 51


def share_above(length: float) -> float:
    """Return the share of samples that are longer."""
    variance = log(1 + (DEVIATION / MEAN) ** 2)
    place = (log(length / MEAN) + variance / 2) / variance**0.5
    bulk = 1 - NormalDist().cdf(place)
    return min(bulk, exp((LONGEST - length) / EXCESS) / OF_SAMPLES)


def length_of(share: float) -> int:
    """Return the length that a share of the samples exceeds."""
    return _find(lambda length: share_above(length) <= share)


def ordinary_group() -> list[int]:
    """Return the batches between two calls of ``empty_cache``: the longest half of a bucket."""
    return [length_of((1 + _BATCH * at) / (_BUCKET + 1)) for at in range(GROUP)]


def deciding_group() -> list[int]:
    """Return those that decide the percentile if the cache is emptied after every ten.

    Ten steps each have what their longest batch has reserved: the sixth longest sample decides.
    """
    sixth = -(-_RANK // GROUP)
    return [length_of(sixth / (_NUM_SAMPLES + 1)), *ordinary_group()[1:]]


def deciding_batch() -> int:
    """Return the batch that decides if the cache is emptied after each: the 51st longest."""
    return _find(lambda length: _num_batches_above(length) < _RANK)


def _num_batches_above(length: float) -> float:
    """Return how many of all batches are longer: of each bucket, so many as those samples fill."""
    rate = _BUCKET * share_above(length)
    term, num_batches = exp(-rate), 0.0
    for found in range(1, _BUCKET + 1):
        term *= rate / found
        num_batches += term * -(-found // _BATCH)
    return num_batches * _NUM_STEPS * _BATCH / _BUCKET


def _find(is_enough: Callable[[float], bool]) -> int:
    return next(length for length in range(1, LONGEST + 1) if is_enough(length))


#: an ordinary group, in whose first step the optimizer makes its state; the deciding group; the
#: deciding batch
LENGTHS = (*ordinary_group(), *deciding_group(), deciding_batch())
