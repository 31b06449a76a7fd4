"""Attention over a paged KV cache, split over keys; `adapter` is its door."""
