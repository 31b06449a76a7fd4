"""What the kernels are not compiled anew for. Triton compiles for every integer anew that is 1 or a multiple of 16.

Head widths and the strides of what is read and written in tiles keep that: there it decides how wide a load is.
"""

LENGTHS_AND_COUNTS = (
    "num_q_heads", "num_kv_heads", "heads", "batches", "longest_q", "longest_k", "left", "right", "dropout_seed",
    "dropout_threshold",
)  # fmt: skip
STRIDES_OF_ROWS = (
    "lse_strides", "d_lse_strides", "norm_strides", "delta_strides", "top_strides", "slope_strides", "part_strides",
    "tile_strides", "block_strides", "inner_strides", "block_sizes",
)  # fmt: skip
