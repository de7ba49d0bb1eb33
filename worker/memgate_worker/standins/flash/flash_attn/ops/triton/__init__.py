"""Those that flash-attn has Triton compile; nothing is compiled here."""
