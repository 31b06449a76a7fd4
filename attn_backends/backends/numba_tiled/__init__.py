"""Attention for CUDA GPUs in plain numba: shared memory, small tiles in registers, online softmax; made to be read."""
