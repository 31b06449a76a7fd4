"""FlashAttention-3, from the package `fa3-fwd`: forward, bfloat16, on sm_90."""
