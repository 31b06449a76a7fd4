"""The one table: every property of an attention call, one row each.

Matching, reasons, the cache key, JSON, command-line flags, `Request`'s fields and the docs are all derived from
`TABLE`; a new property is one row here. Whatever a manifest does not declare is refused, unless the request's value is
the row's neutral one. Light core: standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attn_backends import fields as f
from attn_backends.fields import Field, Sentinel
from attn_backends.strides import CLASSES, request_index_width, request_stride_class
from attn_backends.values import ARCH, FLAGS, MINIMUM, NUMBERS, SIZES, UNDECLARABLE, Kind, levels, names

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request

REQUIRED: Any = Sentinel(__name__, "REQUIRED")
FITS_ANY: Any = Sentinel(__name__, "FITS_ANY")  # the axis does not apply to this call

DTYPES = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8")
FORMATS = ("dense", "scaled-fp8-e4m3", "scaled-fp8-e5m2", "scaled-int8")
GRANULARITIES = ("none", "per_tensor", "per_head", "per_channel", "per_token_head", "block")
LAYOUTS = ("bshd", "bhsd", "thd")
KV_LAYOUTS = ("NHD", "HND")
PHASES = ("prefill", "append", "decode", "mixed")
ATTN_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder")
ALIGNMENTS = ("bottom_right", "top_left")
GRAPH_LEVELS = ("never", "uniform_decode", "uniform_batch", "always")
DEVICE_KINDS = ("cuda", "rocm", "cpu", "mps", "xpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One property of a call.

    `read(request, device)` gives the value on the axis: a tuple, one entry per name in `parts`, where an axis has
    several; `FITS_ANY` where the axis does not apply. `neutral` is the value that needs no declaration, or `REQUIRED`.
    """

    axis: str
    kind: Kind
    doc: str
    fields: tuple[Field, ...] = ()
    read: Callable[[Request, Device], Any]
    neutral: Any = REQUIRED
    parts: tuple[str, ...] = ()
    undeclared: Any = None  # what a box that leaves the axis out declares all the same
    plain: str | None = None  # the field that is the value, where nothing is derived
    derived: bool = False  # the value says more than the row's keyed fields: it enters the cache key itself
    hint: str | None = None

    @property
    def bucketed(self) -> bool:
        """Whether lengths in this axis enter the cache key as ranges."""
        return any(field.bucketed for field in self.fields)


def _plain(axis: str, kind: Kind, doc: str, field: Field, **more: Any) -> Row:
    """A row whose value is its one field, as it stands."""
    name = field.name
    return Row(
        axis=axis, kind=kind, doc=doc, fields=(field,), plain=name, read=lambda request, _device: getattr(request, name),
        **more,
    )  # fmt: skip


def _flag(axis: str, doc: str, field: str | None = None, **more: Any) -> Row:
    """An on/off feature, off unless asked for."""
    return _plain(axis, FLAGS, doc, Field(field or axis, f.FLAG, False, doc=doc), neutral=False, **more)


def _read_arch(_request: Request, device: Device) -> Any:
    return FITS_ANY if device.arch is None and device.kind not in ("cuda", "rocm") else device.arch


def _read_alignment(r: Request, _device: Device) -> Any:
    hangs_on_diagonal = r.causal or r.window_left >= 0 or r.window_right >= 0 or r.alibi
    ragged = r.varlen or r.dense_lengths or r.page_size is not None  # equal maxima, but not sequence by sequence
    return r.causal_alignment if hangs_on_diagonal and (ragged or r.seq_q != r.seq_k) else FITS_ANY


def _read_window(r: Request, _device: Device) -> Any:
    if r.window_right >= 0 and not r.causal:
        return "two_sided"
    return "left" if r.window_left >= 0 else "none"


def _paged(field: str) -> Callable[[Request, Device], Any]:
    return lambda request, _device: None if request.page_size is None else getattr(request, field)


def _pair(*names_of_parts: str) -> Callable[[Request, Device], Any]:
    read = attrgetter(*names_of_parts)
    return lambda request, _device: read(request)


def _length(name: str, default: Any = f.MISSING, least: int = 0, doc: str = "") -> Field:
    check = f.optional_whole(least) if default is None else f.whole(least)
    return Field(name, check, default, bucketed=True, doc=doc)


def _strides(name: str, doc: str = "element strides (batch, seq, heads, head_dim)") -> Field:
    return Field(name, f.STRIDES, None, keyed=False, doc=doc)


TABLE: tuple[Row, ...] = (
    Row(
        axis="device", kind=names(DEVICE_KINDS), doc="kind of device; a box that says nothing means cuda",
        read=lambda _request, device: device.kind, undeclared=["cuda"],
    ),
    Row(axis="arch", kind=ARCH, doc="architecture (major, minor); ranges have an upper bound", read=_read_arch),
    _plain("dtype", names(DTYPES), "dtype of q", Field("dtype", f.word(*DTYPES), doc="dtype of q")),
    _plain(
        "out_dtype", names(("same", *DTYPES)), "dtype of the output, when it is not q's",
        Field("out_dtype", f.word("same", *DTYPES), "same", doc="dtype of the output"), neutral="same",
    ),
    Row(
        axis="kv_format", kind=names(FORMATS), doc="storage format of K and V; both must fit", parts=("k_format", "v_format"),
        fields=(
            Field("k_format", f.word(*FORMATS), "dense", doc="storage format of K"),
            Field("v_format", f.word(*FORMATS), "dense", doc="storage format of V"),
        ),
        read=_pair("k_format", "v_format"),
    ),
    _plain(
        "q_format", names(FORMATS), "storage format of q",
        Field("q_format", f.word(*FORMATS), "dense", doc="storage format of q"), neutral="dense",
    ),
    Row(
        axis="scale_granularity", kind=names(GRANULARITIES), doc="how many elements share a descale",
        parts=("q_granularity", "k_granularity", "v_granularity"), neutral="none",
        fields=(
            *(Field(f"{t}_granularity", f.word(*GRANULARITIES), "none", doc=f"granularity of {t}'s descale") for t in "qkv"),
            Field("scale_block", f.optional_whole(1), None, doc="keys per descale under granularity block"),
        ),
        read=_pair("q_granularity", "k_granularity", "v_granularity"),
    ),
    _plain("layout", names(LAYOUTS), "memory layout of q, k, v", Field("layout", f.word(*LAYOUTS), "bshd", doc="layout of q, k, v")),
    _plain("phase", names(PHASES), "phase of generation", Field("phase", f.word(*PHASES), "prefill", doc="phase of generation")),
    _plain(
        "attn_type", names(ATTN_TYPES), "role of the attention",
        Field("attn_type", f.word(*ATTN_TYPES), "decoder", doc="role of the attention"),
    ),
    _plain("head_dim", NUMBERS, "width of q and k heads", Field("head_dim_qk", f.whole(1), doc="width of a q and k head")),
    _plain("head_dim_v", NUMBERS, "width of v heads", Field("head_dim_v", f.whole(1), doc="width of a v head")),
    Row(
        axis="gqa_ratio", kind=NUMBERS, doc="query heads per KV head",
        fields=(
            Field("num_q_heads", f.whole(1), doc="query heads"),
            Field("num_kv_heads", f.whole(1), doc="KV heads; divides num_q_heads"),
        ),
        read=lambda request, _device: request.num_q_heads // request.num_kv_heads,
    ),
    Row(
        axis="seq_len", kind=NUMBERS, doc="longest query and key sequence", parts=("seq_q", "seq_k"),
        fields=(
            _length("seq_q", doc="longest query sequence, tokens"), _length("seq_k", doc="longest key sequence, tokens"),
            _length("batch", 1, doc="sequences"), _length("total_q", None, doc="query tokens over all sequences, packed"),
            _length("total_k", None, doc="key tokens over all sequences, packed"),
        ),
        read=_pair("seq_q", "seq_k"),
    ),
    _plain("causal", FLAGS, "later keys are hidden", Field("causal", f.FLAG, False, doc="later keys are hidden")),
    _plain(
        "mask", names(("none", "bool")), "a bool attn_mask",
        Field("mask", f.word("none", "bool"), "none", doc="a bool attn_mask is given"), neutral="none",
    ),
    Row(
        axis="causal_alignment", kind=names(ALIGNMENTS), doc="where the diagonal hangs when seq_q != seq_k, or lengths differ per sequence",
        fields=(Field("causal_alignment", f.word(*ALIGNMENTS), "bottom_right", doc="where the diagonal hangs"),),
        read=_read_alignment, derived=True,
    ),
    Row(
        axis="window", kind=names(("none", "left", "two_sided")), doc="sliding window, tokens besides oneself",
        fields=(
            Field("window_left", f.whole(-1), -1, doc="earlier tokens seen besides oneself, -1 = all"),
            Field("window_right", f.whole(-1), -1, doc="later tokens seen besides oneself, -1 = all"),
        ),
        read=_read_window, neutral="none",
    ),
    _flag("bias", "a float attn_mask, added to the scores"),
    _plain(
        "block_mask", SIZES, "granularity of a block-sparse mask",
        Field("block_mask_size", f.BLOCK_SIZE, None, doc="block size of a block-sparse mask"), neutral=None,
    ),
    Row(
        axis="scale", kind=names(("default", "custom")), doc="softmax scale other than 1/sqrt(head_dim_qk)",
        fields=(Field("softmax_scale", f.SCALE, None, doc="softmax scale; none = 1/sqrt(head_dim_qk)"),),
        read=lambda request, _device: "default" if request.softmax_scale is None else "custom", neutral="default",
    ),
    Row(
        axis="softcap", kind=FLAGS, doc="cap * tanh(score / cap), before the mask",
        fields=(Field("softcap", f.SOFTCAP, None, doc="cap of the scores; none = no cap"),),
        read=lambda request, _device: request.softcap is not None, neutral=False,
    ),
    _flag("sinks", "one raw logit per query head in the denominator"),
    _flag("alibi", "ALiBi slopes"),
    Row(
        axis="dropout", kind=FLAGS, doc="dropout of the weights",
        fields=(Field("dropout_p", f.PROBABILITY, 0.0, doc="probability of dropping a weight"),),
        read=lambda request, _device: request.dropout_p > 0, neutral=False,
    ),
    _flag("lse", "returns the log-sum-exp", "return_lse"),
    _flag("backward", "gradients of q, k, v", "needs_backward"),
    _flag("grad_bias", "gradient of a float attn_mask"),
    _flag("grad_sinks", "gradient of the sinks"),
    _flag("deterministic", "bit-equal when repeated"),
    _flag("batch_invariant", "a row does not depend on its batch mates"),
    _flag("varlen", "sequences of different lengths, packed"),
    _flag("dense_lengths", "seq_lens on dense tensors"),
    _flag("nan_safe", "NaN at a key that only some rows see leaves the others alone"),
    _flag("compile", "runs inside torch.compile"),
    Row(
        axis="kv_layout", kind=names(KV_LAYOUTS), doc="memory layout of the KV cache",
        fields=(Field("kv_layout", f.optional_word(*KV_LAYOUTS), None, doc="memory layout of the KV cache"),),
        read=_paged("kv_layout"), neutral=None,
    ),
    Row(
        axis="page_size", kind=NUMBERS, doc="tokens per page of the KV cache",
        fields=(
            Field("page_size", f.optional_whole(1), None, doc="tokens per page; none = no paged cache"),
            _length("num_pages", None, doc="pages in the pool"),
        ),
        read=_paged("page_size"), neutral=None,
    ),
    Row(
        axis="strides", kind=levels(CLASSES), doc="loosest class of the strides of q, k and v",
        fields=(
            _strides("q_strides"), _strides("k_strides"), _strides("v_strides"),
            _strides("mask_strides", "element strides of the mask (batch, heads, seq_q, seq_k)"),
        ),
        read=lambda request, _device: request_stride_class(request), derived=True,
    ),
    _plain(
        "alignment", MINIMUM, "largest power of two that divides pointers and strides, in bytes",
        Field("alignment", f.ALIGNMENT, 1, doc="what pointers and strides are multiples of, in bytes"), undeclared=1,
    ),
    Row(
        axis="index_width", kind=NUMBERS, doc="bits of the largest element offset",
        read=lambda request, _device: request_index_width(request), derived=True,
    ),
    _plain(
        "graph", levels(GRAPH_LEVELS), "CUDA graph capture",
        Field("graph", f.word(*GRAPH_LEVELS), "never", doc="how freely the call is captured in a CUDA graph"), neutral="never",
    ),
    _plain(
        "unknown_feature", UNDECLARABLE, "fields that a newer version asked for",
        Field("unknown", f.UNKNOWN, (), doc="request fields that this version does not know"), neutral=(),
        hint="upgrade attn-backends",
    ),
)  # fmt: skip
