"""`Request`: what one attention call asks for, as plain values. Metadata only; no tensors, no torch.

Its fields come from the one table (`attn_backends/capability.py`); here are the checks that span fields, JSON, and the
lazy door to `from_tensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from attn_backends.errors import RequestError
from attn_backends.fields import MISSING
from attn_backends.reason import frozen, plain
from attn_backends.request_fields import FIELDS, RequestFields
from attn_backends.strides import tensor_sizes

if TYPE_CHECKING:
    import torch

_BY_NAME = {field.name: field for field in FIELDS}


class Request(RequestFields):
    """What a call asks for. Frozen and hashable; every field is checked, errors name field, value and what is allowed.

    Required: `dtype, seq_q, seq_k, num_q_heads, num_kv_heads, head_dim_qk, head_dim_v`; everything else is neutral.
    Raises RequestError for a value outside its field's set, or heads that do not divide.
    """

    __slots__ = ("_hash",)
    _hash: int

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            if name not in _BY_NAME:
                raise RequestError(name, value, "a request field", hint=_near_field(name))
        for field in FIELDS:
            if field.name in values:
                values[field.name] = field.verify(values[field.name])
            elif field.default is MISSING:
                raise RequestError(field.name, None, field.check.allowed, hint="this field has no default")
        if values.get("page_size") is not None and values.get("kv_layout") is None:
            values["kv_layout"] = "NHD"
        super().__init__(**values)
        _check_heads(self)
        _check_strides(self)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", super().__hash__())
            return self._hash

    @classmethod
    def from_tensors(cls, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **arguments: Any) -> Self:
        """The request that `attention(q, k, v, **arguments)` would make. Imports torch."""
        from attn_backends.api import request_from_tensors

        return request_from_tensors(q, k, v, **arguments)  # type: ignore[return-value]  # Request has no subclasses

    def to_json(self) -> dict[str, Any]:
        """Every field that is not at its default, as plain JSON values."""
        return {
            field.name: plain(value)
            for field in FIELDS
            if (value := getattr(self, field.name)) != field.default or field.default is MISSING
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read `to_json`'s dict. Fields of a newer version are kept in `unknown`; every backend then refuses.

        Raises RequestError for anything but a dict, and for an illegal value.
        """
        if not isinstance(data, Mapping):
            raise RequestError("request", data, "an object (dict) as to_json gives it; text goes through json.loads")
        known = {name: frozen(value) for name, value in data.items() if name in _BY_NAME}
        strange = tuple(sorted(str(name) for name in data if name not in _BY_NAME))
        if strange:
            known["unknown"] = _BY_NAME["unknown"].verify(known.get("unknown", ())) + strange
        return cls(**known)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked again."""
        current = {field.name: getattr(self, field.name) for field in FIELDS}
        return type(self)(**{**current, **changes})

    def resized(self, **lengths: int) -> Self:
        """A copy with other lengths, which the caller knows to be legal: nothing is checked, so that it is cheap."""
        made: Any = object.__new__(_Draft)
        _fill(made, self)
        for name, length in lengths.items():
            setattr(made, name, length)
        made.__class__ = Request
        return made  # type: ignore[no-any-return]  # Request has no subclasses


class _Draft(Request):
    """A request while it is made: its slots can be written."""

    __slots__ = ()
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__  # both, or Python goes through slow doors to either


def _filler() -> Callable[[Any, Request], None]:
    """A function that copies every field, written out: a loop over as many takes eight times as long."""
    lines = [f"    made.{name} = request.{name}" for name in _BY_NAME]
    scope: dict[str, Any] = {}
    exec("\n".join(["def fill(made, request):", *lines]), scope)  # noqa: S102  # the names are those of the table
    return scope["fill"]  # type: ignore[no-any-return]  # it has this type


_fill = _filler()


def _check_heads(request: Request) -> None:
    if request.num_q_heads % request.num_kv_heads:
        raise RequestError(
            "num_q_heads",
            request.num_q_heads,
            f"a multiple of num_kv_heads = {request.num_kv_heads}",
            hint="query head h reads KV head h // (num_q_heads // num_kv_heads)",
        )


def _check_strides(request: Request) -> None:
    """Strides have one entry per dim of their tensor: packed tensors have no batch."""
    if request.q_strides is request.k_strides is request.v_strides is request.mask_strides is None:
        return
    sizes = {**tensor_sizes(request), "mask": (1, 1, 1, 1)}
    for name in ("q", "k", "v", "mask"):
        strides = getattr(request, f"{name}_strides")
        if strides is not None and len(strides) != len(sizes[name]):
            dims = "(batch, seq, heads, head_dim)" if len(sizes[name]) == 4 else "(tokens, heads, head_dim), packed"
            raise RequestError(f"{name}_strides", strides, f"{len(sizes[name])} strides {dims}")


def _near_field(name: str) -> str:
    from attn_backends.box import nearest_names

    return nearest_names(name, _BY_NAME)
