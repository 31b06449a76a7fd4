"""Portable FlashAttention-2-style forward and backward in Triton, with every feature of a call."""
