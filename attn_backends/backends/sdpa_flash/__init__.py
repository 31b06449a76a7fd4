"""torch's build of FlashAttention-2, on CUDA."""
