"""Tiled attention for CPUs in numba: online softmax over tiles of keys, products by BLAS, tasks side by side."""
