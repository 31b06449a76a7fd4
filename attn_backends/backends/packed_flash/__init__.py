"""What adapters of FlashAttention kernels share for packed tensors (`thd`): a library, not a backend.

`rows` brings q, k, v to the form that the kernels take, `keys` clears what no row may see, `deliver` writes results into
the caller's tensors, `conversions` says beforehand what is going to be copied. Dense tensors go through `torch_sdpa`.
"""
