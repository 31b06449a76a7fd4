"""Attention on e4m3 operands in plain Triton, for GPUs from sm_89 on: windows, packed sequences, and all but Hopper."""
