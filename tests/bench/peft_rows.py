"""peft's own comparison of its methods, as job specs: predicted against measured.

The measured jobs are those of ``method_comparison/MetaMathQA`` in huggingface/peft: Llama-3.2-3B
in bfloat16, batches of 4, AdamW, the gradient's norm clipped.

The lengths are one sequence for all rows. They were chosen from what is public about the data,
before any row was compared, and are not changed afterwards:

* the script takes 80 samples at a time, sorts them from long to short and makes 20 batches of 4,
  each padded to its longest; it empties the cache after every tenth step. So the memory that is
  reserved in half of all steps is that of the longest sample of 80, and the 99th percentile of the
  steps is the 98th of the 250 sets of 80: the fifth longest of 20,000 samples;
* texts of more than 1,300 characters are left out. The 0.3 % densest of long mathematical texts
  have about 2.0 characters to a token of Llama 3 (1.97 to 2.28 in solutions of MATH and
  OlympiadBench written by people and by models), so the fifth longest has about 640 tokens with
  the words around the question;
* the other lengths are those of 80 samples with the data's mean of 209 tokens (4,198,051 tokens in
  20,000 samples, as the script reports), taken as log-normal with a deviation of 0.45: the 5th,
  9th, ... longest of 80. Ten batches lie between two calls of ``empty_cache``;
* the longest comes again at the end, when the optimizer has its state.
"""

from __future__ import annotations

LENGTHS = (640, 389, 333, 299, 275, 255, 239, 224, 211, 200, 640)
