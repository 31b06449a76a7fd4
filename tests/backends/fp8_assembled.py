"""What the assembler made of a kernel of `fp8`: its warnings, and where registers are spilled."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from triton import knobs

PRODUCT = r"\bQGMMA\b"  # of e4m3, on Hopper


def warnings(ptx: str, arch: str) -> list[str]:
    """The assembler's, C7513 among them: products that it runs one after the other. arch: as Triton names it to ptxas, "sm_90a"."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        tool = knobs.nvidia.ptxas_blackwell if arch.startswith(("sm_10", "sm_12")) else knobs.nvidia.ptxas
        command = [tool.path, "-lineinfo", "-v", f"--gpu-name={arch}", str(path), "-o", str(path.with_suffix(".o"))]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return [line for line in said.splitlines() if "warning" in line.lower() or re.search(r"\bC\d{4}\b", line)]


def spills_in_loops(cubin: bytes) -> int:
    """Loads and stores of spilled registers in a pipeline's loops over keys: the innermost ones that multiply."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, "--print-code", str(path)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    multiplying = [span for span in _loops(listing) if any(re.search(PRODUCT, line) for line in listing[slice(*span)])]
    if not multiplying:
        raise RuntimeError("no loop multiplies")
    innermost = [
        span for span in multiplying
        if not any(other != span and span[0] <= other[0] and other[1] <= span[1] for other in multiplying)
    ]  # fmt: skip
    return sum(bool(re.search(r"\b(?:LDL|STL)\b", line)) for span in innermost for line in listing[slice(*span)])


def _loops(listing: list[str]) -> list[tuple[int, int]]:
    """(first line, line behind the last) of each: a label, and a branch back to it under a condition.

    Without one, it comes from code that waits for a barrier, which lies behind the whole kernel.
    """
    labels: dict[str, int] = {}
    found = []
    for place, line in enumerate(listing):
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = place
        elif (branch := re.search(r"@!?U?P\d BRA\b.*`\((\.L_x_\d+)\)", line)) and branch[1] in labels:
            found.append((labels[branch[1]], place + 1))
    return found
