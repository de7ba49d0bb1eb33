"""Layers of flash-attn that models of other libraries use."""
