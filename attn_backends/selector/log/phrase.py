"""A request and a device in a few characters: `bf16 bshd prefill b2 h32/8 s512x512 d128 causal`, `H200 sm_90`.

Works on the record's plain dicts, fills in defaults from the one table, and shows a field it has never heard of as
`name=value`, so that a new property appears in every text without an edit here. Light core and standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attn_backends.device import arch_name
from attn_backends.fields import MISSING
from attn_backends.reason import frozen, plain, show
from attn_backends.request_fields import FIELDS

Json = Mapping[str, Any]

DEFAULTS: dict[str, Any] = {field.name: plain(field.default) for field in FIELDS if field.default is not MISSING}
DTYPE_WORDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8_e4m3",
               "float8_e5m2": "fp8_e5m2"}  # fmt: skip
FIELD_WORDS = {"softmax_scale": "scale", "return_lse": "lse", "needs_backward": "backward", "dropout_p": "dropout",
               "block_mask_size": "block_mask", "alignment": "align", "causal_alignment": "diagonal"}  # fmt: skip
PAIRS = {"window": ("window_left", "window_right"), "kv_format": ("k_format", "v_format"),
         "kv_scales": ("k_granularity", "v_granularity"), "total": ("total_q", "total_k")}  # fmt: skip
STRIDES = ("q_strides", "k_strides", "v_strides", "mask_strides")
_SHAPE = frozenset(
    ("dtype", "layout", "phase", "batch", "num_q_heads", "num_kv_heads", "seq_q", "seq_k", "head_dim_qk", "head_dim_v")
)


def value_of(request: Json, field: str) -> Any:
    """A field of a record's request, its default where the record leaves it out, `?` where neither is known."""
    return request[field] if field in request else DEFAULTS.get(field, "?")


def request_phrase(request: Json) -> str:
    """One short line: dtype, layout, phase, batch, heads q/kv, lengths q x k, head width, then all that is special."""
    return " ".join([*_shape(request), *_extras(request)])


def device_phrase(device: Json) -> str:
    """`H200 sm_90`, `MI300X gfx942`, `cpu`; an architecture that is the name already is not said twice."""
    name, kind, arch = (device.get(key) for key in ("name", "kind", "arch"))
    words = (str(name or kind or "?"), arch_word(kind, arch))
    return " ".join(dict.fromkeys(word for word in words if word))


def arch_word(kind: Any, arch: Any) -> str:
    """`sm_90` on cuda, `gfx942` or `9.4` elsewhere, empty without one."""
    if not isinstance(arch, list | tuple) or not arch:
        return ""
    return arch_name(kind, (arch[0], arch[1])) if len(arch) == 2 else ".".join(map(str, arch))


def pairs_phrase(values: Json) -> str:
    """`numerics=(exact, quantized) prefer=(a, b)`: any small dict, in its order."""
    return " ".join(f"{name}={word(value)}" for name, value in values.items())


def word(value: Any) -> str:
    """A value as manifests write it, without line breaks or control characters."""
    return printable(show(frozen(value)))


def printable(text: str) -> str:
    """`text` with control characters, terminal escapes among them, written out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _shape(request: Json) -> Iterator[str]:
    get = {name: value_of(request, name) for name in _SHAPE}
    yield DTYPE_WORDS.get(get["dtype"], word(get["dtype"]))
    yield word(get["layout"])
    yield word(get["phase"])
    yield f"b{get['batch']}"
    yield f"h{get['num_q_heads']}/{get['num_kv_heads']}"
    yield f"s{get['seq_q']}x{get['seq_k']}"
    widths = dict.fromkeys((get["head_dim_qk"], get["head_dim_v"]))
    yield "d" + "+".join(map(str, widths))


def _extras(request: Json) -> Iterator[str]:
    special = {
        name: value for name, value in request.items() if name not in _SHAPE and value != DEFAULTS.get(name, MISSING)
    }
    if any(name in special for name in STRIDES):
        yield "strided"
    for pair, names in PAIRS.items():
        if any(name in special for name in names):
            yield _pair(pair, [value_of(request, name) for name in names])
    told = {*STRIDES, *(name for names in PAIRS.values() for name in names)}
    for name, value in special.items():
        if name not in told:
            yield FIELD_WORDS.get(name, name) if value is True else f"{FIELD_WORDS.get(name, name)}={word(value)}"


def _pair(name: str, values: list[Any]) -> str:
    same = values[0] == values[1] and name != "window"
    return f"{name}={word(values[0])}" if same else f"{name}={word(values[0])},{word(values[1])}"
