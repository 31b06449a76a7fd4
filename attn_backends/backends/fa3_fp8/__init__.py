"""FlashAttention-3's fp8 forward, from the package `fa3-fwd`, on sm_90."""
