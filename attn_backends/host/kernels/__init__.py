"""Triton kernels of the cache operations; `host/fused_write.py` and `host/fused_merge.py` are their doors."""
