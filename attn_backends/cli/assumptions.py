"""What a request on the command line leaves unsaid: filled in with what is usual, and said aloud by the commands.

Only fields that have no neutral value are assumed, and what follows from what was given (a decode has one query token).
"""

from __future__ import annotations

import math
from typing import Any

from attn_backends.quantization import STORED_AS

Fields = dict[str, Any]

DTYPE = "bfloat16"
SEQ, CHUNK = 4096, 512
Q_HEADS, KV_HEADS = 32, 8
HEAD_DIM = 128
ALIGNMENT = 16  # bytes; what fresh allocations have at least
_FORMATS = ("q_format", "k_format", "v_format")
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def assume(given: Fields) -> Fields:
    """The fields to add to those given."""
    assumed: Fields = {}
    if "dtype" not in given:
        assumed["dtype"] = DTYPE
    assumed |= _formats(given)
    assumed |= _lengths(given) | _heads(given) | _widths(given) | _scales(given | assumed)
    if given.get("layout") == "thd" and "varlen" not in given:
        assumed["varlen"] = True
    if "alignment" not in given:
        assumed["alignment"] = _alignment(given | assumed)
    return assumed


def _lengths(given: Fields) -> Fields:
    found: Fields = {}
    if "seq_k" not in given:
        found["seq_k"] = SEQ if given.get("phase") in ("decode", "append", "mixed") else given.get("seq_q", SEQ)
    if "seq_q" not in given:
        keys: int = {**given, **found}["seq_k"]
        found["seq_q"] = {"decode": 1, "append": min(CHUNK, keys), "mixed": min(CHUNK, keys)}.get(
            given.get("phase", ""), keys
        )
    return found


def _heads(given: Fields) -> Fields:
    queries, keys = given.get("num_q_heads"), given.get("num_kv_heads")
    if queries is None and keys is None:
        return {"num_q_heads": Q_HEADS, "num_kv_heads": KV_HEADS}
    if keys is None:
        return {"num_kv_heads": queries}
    return {"num_q_heads": keys} if queries is None else {}


def _widths(given: Fields) -> Fields:
    width = given.get("head_dim_qk", given.get("head_dim_v", HEAD_DIM))
    return {name: width for name in ("head_dim_qk", "head_dim_v") if name not in given}


def _formats(given: Fields) -> Fields:
    """A quantised dtype is that of q, k and v alike, and each of them is stored in its format."""
    stored = STORED_AS.get(given.get("dtype", DTYPE))
    return {} if stored is None else {name: stored for name in _FORMATS if name not in given}


def _scales(given: Fields) -> Fields:
    """A quantised tensor has scales; the simplest ones where nothing is said."""
    return {
        f"{tensor}_granularity": "per_tensor"
        for tensor in "qkv"
        if given.get(f"{tensor}_format", "dense") != "dense" and f"{tensor}_granularity" not in given
    }


def _alignment(fields: Fields) -> int:
    """What the rows of contiguous q, k and v are multiples of, in bytes, at most what allocations have."""
    own = _BYTES.get(fields["dtype"], 1)
    stored = {tensor: own if fields.get(f"{tensor}_format", "dense") == "dense" else 1 for tensor in "qkv"}
    widths = {"q": fields["head_dim_qk"], "k": fields["head_dim_qk"], "v": fields["head_dim_v"]}
    found = math.gcd(ALIGNMENT, *(widths[tensor] * stored[tensor] for tensor in "qkv"))
    strides = [(tensor, stride) for tensor in "qkv" for stride in (fields.get(f"{tensor}_strides") or ())[:-1]]
    return math.gcd(found, *(stride * stored[tensor] for tensor, stride in strides))
