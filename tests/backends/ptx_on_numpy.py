"""Runs the PTX that numba makes of numba_mma's kernel, as text, on the machine of numpy: no GPU, no Python of the kernel.

What NVVM writes for this kernel and no more: an unknown instruction is an error. A warp takes every branch as one, which the
kernel promises. `python -m tests.backends.ptx_on_numpy` prints JSON, case -> differences, from a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys

import numpy as np
import torch

from attn_backends.backends.numba_mma.config import Config, shipped
from attn_backends.backends.numba_mma.launch import compiled
from attn_backends.backends.numba_mma.operands import capped
from tests.backends import numba_mma_cases as table
from tests.backends import numba_mma_simulated as simulated

TYPES = {
    "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "s64": np.int64, "u64": np.uint64, "b64": np.uint64,
    "f32": np.float32, "pred": np.bool_,
}  # fmt: skip
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
BINARY = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "div": None,
    "min": np.minimum, "max": np.maximum, "mul": np.multiply, "shl": np.left_shift, "shr": np.right_shift, "rem": None,
}  # fmt: skip


def parsed(text):
    """([(predicate, negated, opcode, operands)], {label: position})."""
    entry = text.index(".entry ")
    body = text[text.index("{", entry) + 1 : text.rindex("}")]
    body = re.sub(r"//[^\n]*", "", body)
    body = re.sub(r"\{ \.reg \.pred [^;]*;(.*?); \}", r"\1;", body)  # our own little scopes
    program, labels = [], {}
    for statement in re.split(r";", body):
        statement = statement.strip()
        while label := re.match(r"(\$\w+):", statement):
            labels[label[1]] = len(program)
            statement = statement[label.end() :].strip()
        if not statement or statement.startswith("."):
            continue
        found = re.fullmatch(r"(?:@(!?)(\S+)\s+)?([\w.:]+)\s*(.*)", statement, re.DOTALL)
        assert found, statement
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", found[4])
        program.append((found[2], found[1] == "!", found[3], operands))
    return program, labels


class Interpreter:
    """One warp's registers and its way through a program."""

    def __init__(self, program, labels, machine, parameters):
        self.program, self.labels, self.machine, self.parameters = program, labels, machine, parameters
        self.registers = {}

    def run(self):
        at = 0
        while True:
            predicate, negated, opcode, operands = self.program[at]
            at += 1
            taken = np.full(32, True)
            if predicate:
                taken = self.registers[predicate] != negated
            if opcode in ("bra", "bra.uni", "ret"):
                assert taken.all() or not taken.any(), "a warp that parts"
                if taken.all():
                    if opcode == "ret":
                        return
                    at = self.labels[operands[0]]
                continue
            self.step(opcode, operands, taken)

    # --- operands ---

    def value(self, name, kind):
        dtype = TYPES[kind]
        if name in self.registers:
            held = self.registers[name]
            if held.dtype.itemsize == 8 and np.dtype(dtype).itemsize == 4:
                held = held.view(np.uint64).astype(np.uint32)  # a wide register where a narrow one is read
            return held if held.dtype == dtype else held.view(dtype)
        if name.startswith("0f"):
            return np.full(32, int(name[2:], 16), np.uint32).view(np.float32)
        block = self.machine.block.cuda
        special = {
            "%tid.x": self.machine.thread, "%ctaid.x": block.blockIdx.x, "%ctaid.y": block.blockIdx.y,
            "%ctaid.z": block.blockIdx.z, "%nctaid.x": block.gridDim.x, "tiles_of_a_block": simulated.BASE,
        }  # fmt: skip
        number = special[name] if name in special else int(name, 0)
        if dtype is np.bool_:
            return np.full(32, bool(number))
        bits = 64 if kind.endswith("64") else 32
        wide = np.broadcast_to(np.asarray(number, object) % (1 << bits), 32).astype(np.uint64)
        return wide.astype(np.uint64 if bits == 64 else np.uint32).view(dtype)

    def address(self, text, kind):
        base, _, offset = text[1:-1].partition("+")
        return self.value(base.strip(), kind) + TYPES[kind](int(offset or 0))

    def several(self, text, kind):
        return [self.value(name.strip(), kind) for name in text[1:-1].split(",")]

    def put(self, name, numbers):
        numbers = np.ascontiguousarray(np.broadcast_to(numbers, 32))
        self.registers[name] = numbers if numbers.flags.writeable else numbers.copy()

    def put_all(self, text, numbers):
        for name, one in zip(text[1:-1].split(","), numbers, strict=True):
            self.put(name.strip(), one)

    # --- instructions ---

    def step(self, opcode, operands, taken):
        name, *parts = opcode.split(".")
        method = getattr(self, "do_" + name, None)
        if method is not None:
            method(parts, operands, taken)
            return
        assert taken.all(), opcode
        kind = parts[-1]
        assert name in BINARY, opcode
        if name in ("shl", "shr"):
            amount = self.value(operands[2], "u32").astype(TYPES[kind])
            self.put(operands[0], BINARY[name](self.value(operands[1], kind), amount))
            return
        one, other = (self.value(operand, kind) for operand in operands[1:])
        if name == "mul" and parts[0] == "wide":
            double = {"s32": np.int64, "u32": np.uint64}[kind]
            self.put(operands[0], one.astype(double) * other.astype(double))
        elif name in ("div", "rem"):
            assert kind.startswith("u") or ((one >= 0).all() and (other > 0).all())
            self.put(operands[0], one // other if name == "div" else one % other)
        elif kind == "f32" and name in ("min", "max"):
            self.put(operands[0], (np.fmin if name == "min" else np.fmax)(one, other))
        else:
            self.put(operands[0], BINARY[name](one, other))

    def do_mov(self, parts, operands, taken):
        self.put(operands[0], self.value(operands[1], parts[-1]))

    def do_not(self, parts, operands, taken):
        self.put(operands[0], ~self.value(operands[1], parts[-1]))

    def do_neg(self, parts, operands, taken):
        self.put(operands[0], -self.value(operands[1], parts[-1]))

    def do_abs(self, parts, operands, taken):
        self.put(operands[0], abs(self.value(operands[1], parts[-1])))

    def do_fma(self, parts, operands, taken):
        a, b, c = (self.value(operand, "f32").astype(np.float64) for operand in operands[1:])
        self.put(operands[0], (a * b + c).astype(np.float32))

    def do_mad(self, parts, operands, taken):
        a, b, c = (self.value(operand, parts[-1]) for operand in operands[1:])
        assert parts[0] == "lo"
        self.put(operands[0], a * b + c)

    def do_setp(self, parts, operands, taken):
        one, other = (self.value(operand, parts[-1]) for operand in operands[1:])
        self.put(operands[0], COMPARE[parts[0]](one, other))

    def do_selp(self, parts, operands, taken):
        one, other = (self.value(operand, parts[-1]) for operand in operands[1:3])
        self.put(operands[0], np.where(self.value(operands[3], "pred"), one, other))

    def do_bfi(self, parts, operands, taken):
        piece, base = (self.value(operand, "u32") for operand in operands[1:3])
        start, length = (int(operand) for operand in operands[3:])
        mask = np.uint32(((1 << length) - 1) << start)
        self.put(operands[0], (base & ~mask) | ((piece << np.uint32(start)) & mask))

    def do_cvt(self, parts, operands, taken):
        if parts[0] == "rn":
            high, low = (self.value(operand, "f32") for operand in operands[1:])
            assert parts[1] == {"float16": "f16x2", "bfloat16": "bf16x2"}[self.machine.half_name]
            self.put(operands[0], self.machine.pack(low, high).view(np.uint32))
            return
        to, of = parts
        bits = {"s": "s32", "u": "u32"}[of[0]] if of.endswith("32") else of
        self.put(operands[0], self.value(operands[1], bits).astype(TYPES[to]))

    def do_copysign(self, parts, operands, taken):
        sign, number = (self.value(operand, "f32") for operand in operands[1:])
        self.put(operands[0], np.copysign(number, sign))

    def do_ex2(self, parts, operands, taken):
        self.put(operands[0], np.exp2(self.value(operands[1], "f32")))

    def do_lg2(self, parts, operands, taken):
        self.put(operands[0], np.log2(self.value(operands[1], "f32")))

    def do_rcp(self, parts, operands, taken):
        self.put(operands[0], np.float32(1) / self.value(operands[1], "f32"))

    def do_ld(self, parts, operands, taken):
        assert taken.all()
        if parts[0] == "param":
            number = self.parameters[int(operands[1].strip("[]").rpartition("_")[2])]
            self.put(operands[0], np.full(32, number, np.float32 if parts[1] == "f32" else np.int64))
        elif parts[0] == "shared":
            found = self.machine.load_shared(self.address(operands[1], "s32"))
            self.put_all(operands[0], [one.view(np.uint32) for one in found])
        else:
            assert parts == ["global", "b32"]
            address = self.address(operands[1], "s64")
            assert (address == address[0]).all()
            self.put(operands[0], np.full(32, self.machine.load_integer(address[0]), np.int32).view(np.uint32))

    def do_st(self, parts, operands, taken):
        if parts[0] == "shared":
            assert taken.all()
            self.machine.store_shared(self.address(operands[0], "s32"), self.value(operands[1], "s32"))
        elif parts[1] == "v4":
            self.machine.store_chunk(self.address(operands[0], "s64"), self.several(operands[1], "s32"), taken)
        else:
            assert parts == ["global", "f32"]
            self.machine.store_real(self.address(operands[0], "s64"), self.value(operands[1], "f32"), taken)

    def do_cp(self, parts, operands, taken):
        if parts[1] == "commit_group":
            self.machine.commit()
        elif parts[1] == "wait_group":
            self.machine.wait(int(operands[0]))
        else:
            assert (parts, operands[2]) == (["async", "cg", "shared", "global"], "16")
            target, source = self.address(operands[0], "s32"), self.address(operands[1], "s64")
            self.machine.copy_async(target, source, self.value(operands[3], "s32"))

    def do_ldmatrix(self, parts, operands, taken):
        assert parts in (
            ["sync", "aligned", "m8n8", "x4", "shared", "b16"],
            ["sync", "aligned", "m8n8", "x4", "trans", "shared", "b16"],
        )
        found = self.machine.ldmatrix(self.address(operands[1], "s32"), transposed="trans" in parts)
        self.put_all(operands[0], [one.view(np.uint32) for one in found])

    def do_mma(self, parts, operands, taken):
        half = {"float16": "f16", "bfloat16": "bf16"}[self.machine.half_name]
        assert parts == ["sync", "aligned", "m16n8k16", "row", "col", "f32", half, half, "f32"]
        a, b = self.several(operands[1], "s32"), self.several(operands[2], "s32")
        self.put_all(operands[0], self.machine.mma(self.several(operands[3], "f32"), a, b))

    def do_shfl(self, parts, operands, taken):
        assert (parts, operands[3:]) == (["sync", "bfly", "b32"], ["31", "0xffffffff"])
        self.put(operands[0], self.machine.from_lane(self.value(operands[1], "f32"), int(operands[2])))

    def do_vote(self, parts, operands, taken):
        assert parts == ["sync", "any", "pred"]
        self.put(operands[0], np.full(32, self.value(operands[1], "pred").any()))

    def do_bar(self, parts, operands, taken):
        if parts == ["sync"]:
            self.machine.block.cuda.syncthreads()
        else:
            assert parts == ["warp", "sync"]


def run(call, config: Config, text: str) -> None:
    """What a launch does, on a CPU's tensors."""
    program, labels = parsed(text)

    def warp(machine, parameters):
        machine.half_name = config.half
        Interpreter(program, labels, machine, parameters).run()

    simulated.run(call, config, warp)


def main() -> None:
    """Some cases of the table, or those that are named, in several kinds."""
    found = {}
    texts: dict[Config, str] = {}
    kinds = [shipped(64, "bfloat16"), shipped(128, "float16"), dataclasses.replace(shipped(128, "bfloat16"), lazy=True)]
    for at, name in enumerate(sys.argv[1:] or table.CASES):
        kind = kinds[at % len(kinds)]
        call = table.call_of(name, kind.head_dim, getattr(torch, kind.half), "cpu")
        config = dataclasses.replace(kind, softcap=capped(call))
        if config not in texts:
            texts[config] = compiled(config, (9, 0))
        run(call, config, texts[config])
        found[name] = {**table.difference(call), "half": config.half}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
