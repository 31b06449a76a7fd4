"""torch's `varlen_attn`: its build of FlashAttention-2 for packed sequences, on CUDA."""
