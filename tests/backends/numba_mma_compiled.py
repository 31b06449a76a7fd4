"""What compiling numba_mma's kernels gives, one line of JSON each: `python -m tests.backends.numba_mma_compiled [--all]`.

PTX by numba, machine code by the ptxas of Triton's wheel. That one is older than numba's NVVM, so it is told that the PTX
is: the kernel uses nothing that is newer than PTX 7.0. In a process of its own, for numba may be simulating in the tests'.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import triton

from attn_backends.backends.numba_mma.config import Config, shipped
from attn_backends.backends.numba_mma.launch import compiled
from attn_backends.numba_driver.ptx import entry_of

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
WORDS = ("LDL", "STL", "HMMA", "LDSM", "LDGSTS", "MUFU.EX2")
ARCHITECTURES = ((8, 0), (9, 0), (12, 0))


def facts(config: Config, arch: tuple[int, int]) -> dict:
    """Of one kernel."""
    text = compiled(config, arch)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(re.sub(r"\.version \d+\.\d+", ".version 8.7", text, count=1), encoding="utf-8")
        target = f"-arch=sm_{arch[0]}{arch[1]}"
        said = output(TOOLS / "ptxas", "-v", target, source, "-o", binary)
        sass = output(TOOLS / "cuobjdump", "-sass", binary)
    header = text[text.index(".entry ") : text.index("{", text.index(".entry "))]
    return {
        "kernel": f"{config.head_dim} {config.half}{' softcap' if config.softcap else ''} sm_{arch[0]}{arch[1]}",
        "registers": int(re.search(r"Used (\d+) registers", said)[1]),
        "spills": sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        "stack": int(re.search(r"(\d+) bytes stack frame", said)[1]),
        "local": text.count(".local"),
        "ldmatrix": len(re.findall(r"ldmatrix\S*\.x4\.shared", text)),
        "transposed": len(re.findall(r"ldmatrix\S*\.x4\.trans", text)),
        "cp.async": text.count("cp.async.cg"),
        "mma": len(re.findall(rf"mma\.sync\S*\.{'f16' if config.half == 'float16' else 'bf16'}\.f32 ", text)),
        "parameters": re.findall(r"\.param \.(\w+)", header),
        "named": entry_of(text) in header,
        "sass": {word: len(re.findall(rf"\b{re.escape(word)}\b", sass)) for word in WORDS},
    }


def output(*command: object) -> str:
    """What a tool says."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def main() -> None:
    """Every width in both types, softcap and architectures by turns; or all."""
    variants = [
        (shipped(64, "float16", False), (9, 0)),
        (shipped(64, "bfloat16", True), (8, 0)),
        (shipped(128, "float16", True), (9, 0)),
        (shipped(128, "bfloat16", False), (12, 0)),
    ]
    if sys.argv[1:] == ["--all"]:
        variants = [
            (shipped(head_dim, half, softcap), arch)
            for head_dim, half, softcap, arch in product(
                (64, 128), ("float16", "bfloat16"), (False, True), ARCHITECTURES
            )
            if half == "bfloat16" or arch == (9, 0)
        ]
    for config, arch in variants:
        print(json.dumps(facts(config, arch)), flush=True)


if __name__ == "__main__":
    main()
