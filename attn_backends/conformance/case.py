"""`Case`: one point in the space of calls, as plain values; with an id that reads well and reads back.

    fwd-bf16-b2h4x2-s129x65-d40-causal-cap30-randn-s0
    bwd-fp32-b2h4x2-s17x33-d40x24-thd-ragged-causal-topleft-left8-small-s3
    fwd-fp16-b3h7x1-s1x50-d64-page16-hnd-decode-ke4m3-ve4m3-gtoken-causal-randn-s0

A case says nothing of what is checked: a `Check` does. Values are made from it by `inputs.py`, always the same ones.
No torch here.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64",
          "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "int8"}  # fmt: skip
FORMATS = {"dense": "", "scaled-fp8-e4m3": "e4m3", "scaled-fp8-e5m2": "e5m2", "scaled-int8": "int8"}
GRANULARITIES = {"per_tensor": "tensor", "per_head": "head", "per_channel": "channel", "per_token_head": "token",
                 "block": "block", "none": ""}  # fmt: skip
MEMORIES = ("contiguous", "head_major", "row_padded", "row_step2", "last_dim_step2", "fused", "odd_unit_strides")
ODD_BLOCK, EVEN_BLOCK = 24, 128  # tokens per descale: no tile of a kernel; for those whose `check` takes no other
VALUES = ("randn", "small", "large", "offset")  # N(0, 1); 0.02 N(0, 1); 32 N(0, 1); N(0, 1) + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: sizes, features, where things lie and which values they have."""

    grads: bool = False
    dtype: str = "float32"
    batch: int = 2
    q_heads: int = 4
    kv_heads: int = 2
    seq_q: int = 17
    seq_k: int = 33
    head_dim: int = 40
    head_dim_v: int = 40
    layout: str = "bshd"
    ragged: bool = False  # lengths differ per sequence, 0 among them: cu_seqlens (thd), seq_lens (dense, paged)
    page_size: int | None = None
    kv_layout: str = "NHD"
    phase: str | None = None
    attn_type: str = "decoder"
    q_format: str = "dense"
    k_format: str = "dense"
    v_format: str = "dense"
    granularity: str = "none"  # of q and k, and of v unless `granularity_v` says otherwise
    granularity_v: str | None = None
    scale_block: int = ODD_BLOCK  # tokens per descale under granularity `block`
    causal: bool = False
    top_left: bool = False
    left: int = -1
    right: int = -1
    softcap: float | None = None
    scale: float | None = None
    sinks: bool = False
    alibi: bool = False
    mask: str = "none"  # none, bool, bias (finite and -inf entries)
    mask_dims: int = 4  # of the mask: 2, 3 or 4
    block_mask: int | None = None  # queries per block, and keys unless `block_mask_k` says otherwise
    block_mask_k: int | None = None
    dropout: float = 0.0
    lse: bool = True
    grad_bias: bool = False
    grad_sinks: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    nan_safe: bool = False
    out_dtype: str | None = None
    memory: str = "contiguous"
    values: str = "randn"
    seed: int = 0

    def granularity_of(self, name: str) -> str:
        """The granularity of q's, k's or v's descale; none where the tensor is dense."""
        if getattr(self, f"{name}_format") == "dense":
            return "none"
        return self.granularity_v if name == "v" and self.granularity_v else self.granularity

    @property
    def granularities(self) -> frozenset[str]:
        """Those of the descales that the call has; empty where everything is dense."""
        return frozenset(self.granularity_of(name) for name in "qkv") - {"none"}

    @property
    def block_keys(self) -> int:
        """Keys per block of the block mask; 0 without one."""
        return self.block_mask_k or self.block_mask or 0

    @property
    def id(self) -> str:
        """The readable id; `parse` reads it back."""
        return "-".join(word for word in _words(self) if word)

    def replace(self, **changes: Any) -> Case:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _words(c: Case) -> list[str]:
    width = f"d{c.head_dim}" if c.head_dim == c.head_dim_v else f"d{c.head_dim}x{c.head_dim_v}"
    return [
        "bwd" if c.grads else "fwd", DTYPES[c.dtype], f"b{c.batch}h{c.q_heads}x{c.kv_heads}", f"s{c.seq_q}x{c.seq_k}",
        width, c.layout if c.layout != "bshd" else "", "ragged" if c.ragged else "",
        f"page{c.page_size}" if c.page_size else "", "hnd" if c.kv_layout == "HND" else "", c.phase or "",
        c.attn_type if c.attn_type != "decoder" else "", *_format_words(c), "causal" if c.causal else "",
        "topleft" if c.top_left else "", _number("left", c.left), _number("right", c.right),
        "" if c.softcap is None else f"cap{c.softcap:g}", "" if c.scale is None else f"scale{c.scale:g}".replace("-", "m"),
        "sinks" if c.sinks else "", "alibi" if c.alibi else "", "" if c.mask == "none" else f"{c.mask}{c.mask_dims}d",
        _blocks(c), f"drop{c.dropout:g}" if c.dropout else "",
        "" if c.lse else "nolse", "gradbias" if c.grad_bias else "", "gradsinks" if c.grad_sinks else "",
        "det" if c.deterministic else "", "batchinv" if c.batch_invariant else "", "nansafe" if c.nan_safe else "",
        f"out{DTYPES[c.out_dtype]}" if c.out_dtype else "", c.memory if c.memory != "contiguous" else "", c.values,
        f"s{c.seed}",
    ]  # fmt: skip


def _format_words(c: Case) -> list[str]:
    stored = [
        f"{name}{FORMATS[value]}"
        for name, value in (("q", c.q_format), ("k", c.k_format), ("v", c.v_format))
        if value != "dense"
    ]
    spread = "x".join(GRANULARITIES[word] for word in (c.granularity, c.granularity_v) if word)
    block = "" if c.scale_block == ODD_BLOCK else f"per{c.scale_block}"
    return [*stored, f"g{spread}", block] if stored else []


def _blocks(c: Case) -> str:
    if c.block_mask is None:
        return ""
    return f"blocks{c.block_mask}" if c.block_mask_k is None else f"blocks{c.block_mask}x{c.block_mask_k}"


def _number(name: str, value: int) -> str:
    return "" if value == -1 else f"{name}{value}"


_FLAG_WORDS = {"ragged": "ragged", "causal": "causal", "topleft": "top_left", "sinks": "sinks", "alibi": "alibi",
               "gradbias": "grad_bias", "gradsinks": "grad_sinks", "det": "deterministic", "batchinv": "batch_invariant",
               "nansafe": "nan_safe"}  # fmt: skip
_BACK = {short: name for name, short in DTYPES.items()}
_FORMAT_BACK = {short: name for name, short in FORMATS.items() if short}
_GRANULARITY_BACK = {short: name for name, short in GRANULARITIES.items() if short}


def parse(text: str) -> Case:
    """The case of an id. Raises ValueError, naming the word that it does not know."""
    words = text.split("-")
    if len(words) < 5 or words[0] not in ("fwd", "bwd") or words[1] not in _BACK:
        raise ValueError(f"{text!r} is no case id; it starts like fwd-bf16-b2h4x2-s129x65-d40")
    fields: dict[str, Any] = {"grads": words[0] == "bwd", "dtype": _BACK[words[1]]}
    for word in words[2:]:
        found = _read_word(word)
        if found is None:
            raise ValueError(f"{text!r}: unknown word {word!r}")
        fields.update(found)
    return Case(**fields)


def _read_word(word: str) -> dict[str, Any] | None:  # noqa: C901  # one line per kind of word
    if word in _FLAG_WORDS:
        return {_FLAG_WORDS[word]: True}
    if word in ("bhsd", "thd"):
        return {"layout": word}
    if word in ("prefill", "append", "decode", "mixed"):
        return {"phase": word}
    if word in ("encoder", "encoder_only", "encoder_decoder"):
        return {"attn_type": word}
    if word in MEMORIES:
        return {"memory": word}
    if word in VALUES:
        return {"values": word}
    if word == "hnd":
        return {"kv_layout": "HND"}
    if word == "nolse":
        return {"lse": False}
    if word.startswith("out") and word[3:] in _BACK:
        return {"out_dtype": _BACK[word[3:]]}
    if word[0] in "qkv" and word[1:] in _FORMAT_BACK:
        return {f"{word[0]}_format": _FORMAT_BACK[word[1:]]}
    if word[0] == "g" and set(word[1:].split("x")) <= set(_GRANULARITY_BACK):
        spread = [_GRANULARITY_BACK[one] for one in word[1:].split("x")]
        return dict(zip(("granularity", "granularity_v"), spread, strict=False))
    return _read_numbered(word)


_NUMBERED: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    (r"b(\d+)h(\d+)x(\d+)", ("batch", "q_heads", "kv_heads"), int),
    (r"s(\d+)x(\d+)", ("seq_q", "seq_k"), int),
    (r"d(\d+)x(\d+)", ("head_dim", "head_dim_v"), int),
    (r"page(\d+)", ("page_size",), int),
    (r"per(\d+)", ("scale_block",), int),
    (r"left(\d+)", ("left",), int),
    (r"right(\d+)", ("right",), int),
    (r"cap([\d.e+]+)", ("softcap",), float),
    (r"blocks(\d+)x(\d+)", ("block_mask", "block_mask_k"), int),
    (r"blocks(\d+)", ("block_mask",), int),
    (r"drop([\d.]+)", ("dropout",), float),
    (r"s(\d+)", ("seed",), int),
)


def _read_numbered(word: str) -> dict[str, Any] | None:
    for pattern, names, read in _NUMBERED:
        found = re.fullmatch(pattern, word)
        if found:
            return dict(zip(names, map(read, found.groups()), strict=True))
    if found := re.fullmatch(r"d(\d+)", word):
        return {"head_dim": int(found[1]), "head_dim_v": int(found[1])}
    if found := re.fullmatch(r"scale(m?[\d.e+]+(?:m\d+)?)", word):
        return {"scale": float(found[1].replace("m", "-"))}
    if found := re.fullmatch(r"(bool|bias)(\d)d", word):
        return {"mask": found[1], "mask_dims": int(found[2])}
    return None
