"""`Chip`: what one multiprocessor of an architecture has and does per clock, as far as an attention pipeline cares.

Tensor cores multiply-add 2,048 (Hopper) and 4,096 (Blackwell) pairs of 16-bit numbers per clock and multiprocessor; both
compute 16 exponentials. Sources: NVIDIA's data sheets (989 and 2,250 TFLOP/s dense, over 132 and 148 multiprocessors at
1.83 and 1.86 GHz) and the CUDA programming guide (arithmetic throughput, tensor memory).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One multiprocessor: bytes of shared memory, 32-bit registers, threads; rates per clock.

    rows: queries that one matrix instruction takes
    matrix_rate: multiply-adds of 16-bit operands; 8-bit ones run twice as fast
    exp_rate: exponentials; copy_rate: bytes through a multiprocessor's port to the L2 cache
    tensor_columns: of tensor memory, each of 128 32-bit cells, where accumulators live; 0 where registers hold them
    """

    name: str
    multiprocessors: int
    rows: int
    shared: int = 232_448
    registers: int = 65_536
    threads: int = 2_048
    matrix_rate: int
    exp_rate: int = 16
    copy_rate: int = 64
    tensor_columns: int = 0


HOPPER = Chip(name="hopper", multiprocessors=132, rows=64, matrix_rate=2_048)
BLACKWELL = Chip(name="blackwell", multiprocessors=148, rows=128, matrix_rate=4_096, tensor_columns=512)
CHIPS = {chip.name: chip for chip in (HOPPER, BLACKWELL)}
