"""A GPU for numba_mma's kernel, in numpy: its own Python, stage by stage, on a machine whose registers are 32 numbers.

Warps are threads that meet at `syncthreads`; a copy that was asked for arrives when it is waited for, and until then NaN
lies in its place; addresses are the real ones of torch's memory on the CPU, and each access is held against the tensors.
`mma` and `ldmatrix` are written from the tables of the PTX manual, not from the kernel's use of them.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from types import SimpleNamespace

import numpy as np
import torch

from attn_backends.backends.numba_mma.config import Config
from attn_backends.backends.numba_mma.kernel import STAGES, kernel_of
from attn_backends.backends.numba_mma.operands import operands_of

LANES = np.arange(32, dtype=np.int32)
BASE = 4096  # where a block's shared memory begins
FOUR = np.arange(4)


def pairs(halves):
    """[..., 2] numbers of 16 bits in one register, the first one low."""
    halves = halves.astype(np.uint32)
    return (halves[..., 0] | halves[..., 1] << np.uint32(16)).view(np.int32)


def halves_of(register):
    """[..., 2] numbers of 16 bits."""
    bits = np.ascontiguousarray(register).view(np.uint32)
    return np.stack([bits & np.uint32(0xFFFF), bits >> np.uint32(16)], -1).astype(np.uint16)


class Half:
    """The two 16-bit types: bits to float32, and rounding to nearest even."""

    def __init__(self, name):
        self.dtype = getattr(torch, name)

    def real(self, bits):
        return torch.from_numpy(bits.astype(np.int32).astype(np.int16)).view(self.dtype).float().numpy()

    def bits(self, numbers):
        return torch.from_numpy(numbers).to(self.dtype).view(torch.int16).numpy().view(np.uint16)


class Block:
    """One block: shared memory that holds NaN at first, and its warps' meeting point."""

    def __init__(self, config, index, grid, allowed):
        self.shared = np.full(BASE + config.shared_bytes, 0xFF, np.uint8)
        self.barrier = threading.Barrier(config.warps)
        self.cuda = SimpleNamespace(
            blockIdx=SimpleNamespace(**dict(zip("xyz", index, strict=True))),
            gridDim=SimpleNamespace(**dict(zip("xyz", grid, strict=True))),
            syncthreads=self.barrier.wait,
        )
        self.allowed = allowed

    def at(self, address, size):
        """Shared memory at an address, which must be aligned."""
        assert BASE <= address <= self.shared.size - size, "outside shared memory"
        assert address % size == 0, "not aligned"
        return self.shared[address : address + size]

    def global_at(self, address, size):
        """Global memory, which must belong to a tensor of the call."""
        assert any(start <= address and address + size <= end for start, end in self.allowed), "outside every tensor"
        assert address % size == 0, "not aligned"
        return np.frombuffer((ctypes.c_uint8 * size).from_address(int(address)), np.uint8)


class Warp:
    """The machine: see attn_backends/backends/numba_mma/machine.py for what each method means."""

    def __init__(self, block, config, number):
        self.block, self.warp, self.lane = block, number, LANES
        self.thread = np.int32(32 * number) + LANES
        self.half = Half(config.half)
        self.asked, self.groups = [], []

    def real(self, number):
        return np.full(32, number, np.float32)

    def integer(self, number):
        return np.full(32, number, np.int32)

    def narrow(self, number):
        wide = np.broadcast_to(np.asarray(number, np.int64), 32)
        assert (abs(wide) < 2**31).all()
        return wide.astype(np.int32)

    def wide(self, number):
        return number.astype(np.int64)

    def select(self, condition, one, other):
        return np.where(condition, one, other).astype(other.dtype)

    def product(self, one, other):
        return one * other

    def maximum(self, one, other):
        return np.fmax(one, other)

    def magnitude(self, number):
        return abs(number)

    def signed(self, number, sign):
        return np.copysign(number, sign)

    def exp2(self, number):
        return np.exp2(number)

    def log2(self, number):
        return np.log2(number)

    def reciprocal(self, number):
        return np.float32(1) / number

    def pack(self, low, high):
        return pairs(np.stack([self.half.bits(low), self.half.bits(high)], -1))

    def from_lane(self, number, distance):
        return number[LANES ^ distance]

    def anywhere(self, condition):
        return int(condition.any())

    def sync_warp(self):
        pass

    def mma(self, sums, a, b):
        """Element i of a fragment is at (row, column) as the manual says, for every lane."""
        group, one = LANES // 4, LANES % 4
        halves = np.stack([self.half.real(halves_of(register)) for register in a], 1).reshape(32, 8)
        left, right = np.zeros((16, 16), np.float64), np.zeros((16, 8), np.float64)
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            left[row, one * 2 + (i & 1) + (8 if i >= 4 else 0)] = halves[:, i]
        halves = np.stack([self.half.real(halves_of(register)) for register in b], 1).reshape(32, 4)
        for i in range(4):
            right[one * 2 + (i & 1) + (8 if i >= 2 else 0), group] = halves[:, i]
        product = left @ right
        return [
            (sums[i] + product[group if i < 2 else group + 8, one * 2 + (i & 1)]).astype(np.float32) for i in range(4)
        ]

    def shared(self):
        return BASE

    def ldmatrix(self, address, *, transposed=False):
        found = []
        for matrix in range(4):
            rows = [self.block.at(int(address[8 * matrix + row]), 16).view(np.uint16) for row in range(8)]
            numbers = np.stack(rows)
            numbers = numbers.T if transposed else numbers
            found.append(pairs(np.stack([numbers[LANES // 4, 2 * (LANES % 4) + i] for i in (0, 1)], -1)))
        return found

    def store_shared(self, address, number):
        for lane in LANES:
            self.block.at(int(address[lane]), 4)[:] = number[lane : lane + 1].view(np.uint8)

    def load_shared(self, address):
        rows = np.stack([self.block.at(int(address[lane]), 16).view(np.int32) for lane in LANES])
        return [rows[:, i].copy() for i in FOUR]

    def copy_async(self, shared, address, size):
        for lane in LANES:
            wanted = int(size[lane])
            assert wanted in (0, 16)
            assert address[lane] % 16 == 0, "not aligned"
            target = self.block.at(int(shared[lane]), 16)
            target[:] = 0xFF
            source = self.block.global_at(int(address[lane]), 16) if wanted else np.zeros(16, np.uint8)
            self.asked.append((target, source))

    def commit(self):
        self.groups.append(self.asked)
        self.asked = []

    def wait(self, groups):
        while len(self.groups) > groups:
            for target, source in self.groups.pop(0):
                target[:] = source

    def load_integer(self, address):
        return int(self.block.global_at(int(address), 4).view(np.int32)[0])

    def store_chunk(self, address, numbers, condition):
        rows = np.stack([np.broadcast_to(number, 32) for number in numbers], -1).astype(np.int32)
        for lane in LANES[np.broadcast_to(condition, 32)]:
            self.block.global_at(int(address[lane]), 16)[:] = rows[lane].view(np.uint8)

    def store_real(self, address, number, condition):
        for lane in LANES[np.broadcast_to(condition, 32)]:
            where = int(np.broadcast_to(address, 32)[lane])
            self.block.global_at(where, 4)[:] = number[lane : lane + 1].view(np.uint8)


def python_of(config):
    """The kernel's own Python, as one warp runs it."""

    def warp(machine, parameters):
        def bound(one):
            def stage(*operands):
                operands = [machine.real(x) if isinstance(x, np.floating) else x for x in operands]
                made = one.function(machine, config, *operands)
                results = one.results(config)
                assert not results or not results[1] or len(made) == results[1]
                return made

            return stage

        stages = {name: bound(one) for name, one in STAGES.items()}
        kernel_of(config, stages, machine.block.cuda, np.float32, int)(*parameters)

    return warp


def run_block(config, index, grid, parameters, allowed, warp):
    """All warps of a block, to their end."""
    block, failures = Block(config, index, grid, allowed), []

    def go(number):
        machine = Warp(block, config, number)
        try:
            with np.errstate(all="ignore"):
                warp(machine, parameters)
            assert not machine.asked
            assert not any(machine.groups), "copies that nobody waits for"
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again below, in the thread that asked
            failures.append(error)
            block.barrier.abort()

    warps = [threading.Thread(target=go, args=(number,)) for number in range(config.warps)]
    for one in warps:
        one.start()
    for one in warps:
        one.join()
    if failures:
        raise failures[0]


def span_of(tensor):
    """Where a tensor's numbers are."""
    if tensor is None or not tensor.numel():
        return (0, 0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())


def run(call, config: Config, warp=None) -> None:
    """What the adapter does, on a CPU's tensors; `warp` runs one warp of the kernel."""
    made = operands_of(call, call.out, config.rows)
    if made is None:
        return
    grid, parameters = made
    parameters = (*parameters[:-2], *(np.float32(one) for one in parameters[-2:]))
    tensors = (call.q, call.k, call.v, call.out, call.lse, call.cu_seqlens_q, call.cu_seqlens_k)
    allowed = [span_of(tensor) for tensor in tensors]
    for index in itertools.product(*map(range, grid)):
        run_block(config, index, grid, parameters, allowed, warp or python_of(config))
