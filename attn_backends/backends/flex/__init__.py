"""torch's flex_attention, compiled, on CUDA."""
