"""Attention on tensor cores, written in numba with inline PTX: mma.sync, ldmatrix, cp.async, swizzled shared memory.

From the inside out: `value.py`, `machine.py` (registers and instructions), `products.py`, `softmax.py`, `memory.py` (the
stages of the algorithm, in terms of a machine), `intrinsic.py` (a stage as numba sees it), `kernel.py` (the algorithm),
`launch.py`, `adapter.py` (from a call to a launch, with `attn_backends/numba_driver/`).
"""
