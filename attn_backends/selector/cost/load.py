"""`Load`: what one pass of a kind of kernel would take at a device's peaks, before any backend's shares of them.

Backends of one kind (tiled alike or materialising, exact or quantising) have the same load for a request, so it is computed
once per kind and request. A request counts with one size, or with several that stand for its bucket: what does not depend on
the size is worked out once for all of them, the rest is a list with one entry per size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attn_backends.registry.tiles import DEFAULT, Tiles, of_any_length, of_pass, serving
from attn_backends.selector.conversions import Called
from attn_backends.selector.cost import operations, traffic
from attn_backends.selector.cost.extent import Extent, extent_of
from attn_backends.selector.cost.rates import Rates, rates_of
from attn_backends.selector.cost.sequences import sequences_of
from attn_backends.selector.cost.tiling import tiled

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request
    from attn_backends.selector.cost.sequences import Sequences

TILED_KERNELS = {False: 1, True: 3}  # by whether it is the backward: delta, dK and dV, dQ
SPLIT_KERNELS = 2  # decode: the second merges the parts
MATERIALISING_KERNELS = {False: 8, True: 16}


# Seconds at the device's peaks: products, exponentials, memory, and the start (launches and the ramp of the call).
Load = tuple[float, float, float, float]


# Of one kind of kernel: the share that memory has (`quantized` where K or V is, else `memory`), and the load of each size.
Loads = tuple[str, list[Load]]


# What tiled kernels have in common: seconds per pair of products and of exponentials; by size the pairs of packed sequences
# over all heads, and the seconds of memory and of the start.
Bare = tuple[float, float, list[tuple[float, float, float]]]


class Subject(NamedTuple):
    """A request of some sizes on a device, the conversions it calls for, and what was worked out for it so far."""

    request: Request
    device: Device
    extents: list[Extent]
    rates: Rates
    forward: bool
    backward: bool
    called: Called
    loads: dict[tuple[str, str, bool, tuple[Tiles, ...]], Loads]
    bare: dict[tuple[bool, bool], Bare]
    necessary: dict[bool, list[float]]  # bytes, by whether it is the backward
    converted: dict[tuple[str, ...], list[float]]  # seconds, by the conversions


def subject_of(
    request: Request, device: Device, *, sequences: Sequences | None = None, passes: str | None = None
) -> Subject | None:
    """Count once for all backends; None where the device's rates are unknown. Arguments as for `floor_of`."""
    return subject_of_sizes(request, device, (sequences_of(request) if sequences is None else sequences,), passes)


def subject_of_sizes(
    request: Request, device: Device, sizes: tuple[Sequences, ...], passes: str | None = None
) -> Subject | None:
    """The same for several sizes of one request."""
    rates = rates_of(device, request.dtype)
    if rates is None:
        return None
    which = passes or ("both" if request.needs_backward else "forward")
    extents = [extent_of(request, one) for one in sizes]
    return Subject(
        request,
        device,
        extents,
        rates,
        which != "backward",
        which != "forward",
        Called(request, device),
        {},
        {},
        {},
        {},
    )


def loads_of(manifest: Manifest, subject: Subject, *, backward: bool) -> Loads:
    """The loads of a backend's kind for one pass, one per size."""
    rows = of_pass(manifest.tiles, backward)
    key = (manifest.algorithm, manifest.numerics, backward, rows)
    loads = subject.loads.get(key)
    if loads is None:
        if manifest.algorithm == "materialising":
            loads = _materialising(subject, backward)
        else:
            loads = _tiled(subject, backward, rows, quantising=manifest.numerics == "quantized")
        subject.loads[key] = loads
    return loads


def converted(subject: Subject, names: tuple[str, ...]) -> list[float]:
    """Seconds for the bytes that these conversions move at the device's peak, one per size."""
    found = subject.converted.get(names)
    if found is None:
        peak = subject.rates.memory
        found = [moved / peak for moved in traffic.converted(names, subject.request, subject.extents)]
        subject.converted[names] = found
    return found


def _occupancy(extent: Extent, units: int) -> float:
    """Share of the multiprocessors that have work while packed sequences are: the last wave is rarely full."""
    if not extent.parts:
        return 1.0
    if extent.split:  # as many parts as there are multiprocessors, of equal length
        return min(1.0, extent.parts / units)
    return extent.parts / (-(-extent.parts // units) * units)


def _tiled(subject: Subject, backward: bool, rows: tuple[Tiles, ...], *, quantising: bool) -> Loads:
    """Tiles that somebody sees; a backend that quantises what it gets multiplies in int8."""
    bare = subject.bare.get((quantising, backward))
    if bare is None:
        bare = subject.bare[quantising, backward] = _bare(subject, quantising, backward)
    request, rates = subject.request, subject.rates
    heads, units, launch = request.num_q_heads, rates.units, rates.launch
    group, ragged = heads // request.num_kv_heads, request.total_q is not None
    matrix, exp, by_size = bare
    able = of_any_length(rows, request.head_dim_qk, request.causal) if rows else ()
    loads = []
    for extent, (packed, memory, start) in zip(subject.extents, by_size, strict=True):
        tiles = serving(able, extent.longest) if able else DEFAULT
        pairs, parts = tiled(extent, heads, group, ragged, tiles, units)
        uniform = tiles.uniform and extent.long and extent.packed
        pairs += packed * (extent.short * tiles.rows / (group * extent.packed)) if uniform else packed
        loads.append((matrix * pairs, exp * pairs, memory, start + launch if parts > 1 else start))
    return "memory" if request.k_format == request.v_format == "dense" else "quantized", loads


def _bare(subject: Subject, quantising: bool, backward: bool) -> Bare:
    request, rates = subject.request, subject.rates
    if quantising:
        rates = rates_of(subject.device, "int8") or rates
    heads = request.num_q_heads
    matrix = _flops(request, 1.0, backward) / (heads * rates.matrix)
    exp = 1.0 / rates.exp if rates.exp else 0.0
    found = []
    for extent, moved in zip(subject.extents, _necessary(subject, backward), strict=True):
        occupied = _occupancy(extent, rates.units)
        kernels = SPLIT_KERNELS if extent.split and not backward else TILED_KERNELS[backward]
        memory = moved / (rates.memory * (occupied if extent.split else 1.0))
        found.append((extent.packed * heads / occupied, memory, kernels * rates.launch + rates.ramp))
    return matrix, exp, found


def _materialising(subject: Subject, backward: bool) -> Loads:
    """Every pair, hidden or not, with scores and weights in memory; in float32, or float64."""
    request = subject.request
    rates = rates_of(subject.device, "float64" if request.dtype == "float64" else "float32") or subject.rates
    start = MATERIALISING_KERNELS[backward] * rates.launch + rates.ramp
    loads = []
    for extent, necessary in zip(subject.extents, _necessary(subject, backward), strict=True):
        matrix = _flops(request, extent.every, backward) / rates.matrix
        exp = operations.exponentials(request, extent.every) / rates.exp if rates.exp else 0.0
        scores = traffic.score_bytes(request, extent, backward=backward)
        memory = (necessary + scores + traffic.widened_kv(request, extent)) / rates.memory
        loads.append((matrix, exp, memory, start))
    return "memory", loads


def _flops(request: Request, pairs: float, backward: bool) -> float:
    return operations.backward_flops(request, pairs) if backward else operations.forward_flops(request, pairs)


def _necessary(subject: Subject, backward: bool) -> list[float]:
    found = subject.necessary.get(backward)
    if found is None:
        count = traffic.necessary_backward if backward else traffic.necessary_forward
        found = subject.necessary[backward] = [count(subject.request, extent) for extent in subject.extents]
    return found
