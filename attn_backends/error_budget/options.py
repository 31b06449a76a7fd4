"""The ways to quantise one attention call, as data. A new one is one row.

`weights` are the softmax weights, which enter the second product in the format of that product's unit: an fp8 kernel
rounds them too, one that only stores K and V in 8 bits does not.
"""

from __future__ import annotations

from dataclasses import dataclass

BITS = {"e4m3": 8, "e5m2": 8, "int8": 8, "bf16": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """q, k, v, weights: a format of `BITS`, or "" for what the tensor already is.

    granularity: what shares a scale, by the names of `attn_backends.quantization`; `block` is 128 tokens of one head
    rotated: q and k go through the same random rotation before they are rounded (`hadamard.py`)
    """

    name: str
    summary: str
    q: str = ""
    k: str = ""
    v: str = ""
    weights: str = "bf16"
    granularity: str = "per_tensor"
    rotated: bool = False


def _fp8(name: str, summary: str, granularity: str, *, rotated: bool = False) -> Option:
    return Option(
        name=name, summary=summary, q="e4m3", k="e4m3", v="e4m3", weights="e4m3", granularity=granularity,
        rotated=rotated,
    )  # fmt: skip


OPTIONS = (
    Option(name="16 bits", summary="nothing quantised; weights in bfloat16"),
    Option(name="v-only int8", summary="V stored in 8 bits, scales per token and head", v="int8", granularity="per_token_head"),
    Option(name="v-only e4m3", summary="V stored in fp8, scales per head", v="e4m3", granularity="per_head"),
    Option(name="kv int8", summary="K and V stored in 8 bits, scales per token and head", k="int8", v="int8", granularity="per_token_head"),
    Option(name="kv e4m3 per channel", summary="K and V stored in fp8, scales per head and channel", k="e4m3", v="e4m3", granularity="per_channel"),
    Option(name="kv e4m3", summary="K and V stored in fp8, scales per head", k="e4m3", v="e4m3", granularity="per_head"),
    _fp8("fp8 blocks + Hadamard", "everything in fp8, scales per head and block, q and k rotated", "block", rotated=True),
    _fp8("fp8 blocks", "everything in fp8, scales per head and block of 128 tokens", "block"),
    _fp8("fp8 per head", "everything in fp8, one scale per head", "per_head"),
    _fp8("fp8 per tensor", "everything in fp8, one scale per tensor", "per_tensor"),
)  # fmt: skip
