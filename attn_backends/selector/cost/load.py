"""`Load`: what one pass of a kind of kernel would take at a device's peaks, before any backend's shares of them.

Backends of one kind (tiled alike or materialising, exact or quantising) have the same load for a request, so it is computed
once per kind and request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attn_backends.registry.tiles import DEFAULT, Tiles
from attn_backends.selector.conversions import Called
from attn_backends.selector.cost import operations, traffic
from attn_backends.selector.cost.extent import Extent, extent_of
from attn_backends.selector.cost.rates import Rates, rates_of
from attn_backends.selector.cost.tiling import tiled

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request
    from attn_backends.selector.cost.sequences import Sequences

TILED_KERNELS = {False: 1, True: 3}  # by whether it is the backward: delta, dK and dV, dQ
SPLIT_KERNELS = 2  # decode: the second merges the parts
MATERIALISING_KERNELS = {False: 8, True: 16}


class Load(NamedTuple):
    """Seconds at the device's peaks; `start` is the launches and the ramp of the call, `launch` one further kernel.

    `stored` names the share that the memory term has: `quantized` where K or V is, else `memory`.
    """

    matrix: float
    exp: float
    memory: float
    start: float
    launch: float
    stored: str


class Bare(NamedTuple):
    """What tiled kernels have in common: seconds per pair, pairs of packed sequences over all query heads, and the rest."""

    pairs: float
    matrix: float
    exp: float
    memory: float
    start: float
    launch: float
    stored: str


class Subject(NamedTuple):
    """A request on a device, the conversions it calls for, and what was worked out for it so far."""

    request: Request
    device: Device
    extent: Extent
    rates: Rates
    forward: bool
    backward: bool
    called: Called
    loads: dict[tuple[str, str, bool, Tiles], Load]
    bare: dict[tuple[bool, bool], Bare]


def subject_of(
    request: Request, device: Device, *, sequences: Sequences | None = None, passes: str | None = None
) -> Subject | None:
    """Count once for all backends; None where the device's rates are unknown. Arguments as for `floor_of`."""
    rates = rates_of(device, request.dtype)
    if rates is None:
        return None
    which = passes or ("both" if request.needs_backward else "forward")
    extent = extent_of(request, sequences)
    return Subject(
        request, device, extent, rates, which != "backward", which != "forward", Called(request, device), {}, {}
    )


def load_of(manifest: Manifest, subject: Subject, *, backward: bool) -> Load:
    """The load of a backend's kind for one pass."""
    tiles = DEFAULT if backward else _tiles(manifest, subject)
    key = (manifest.algorithm, manifest.numerics, backward, tiles)
    load = subject.loads.get(key)
    if load is None:
        if manifest.algorithm == "materialising":
            load = _materialising(subject, backward)
        else:
            load = _tiled(subject, backward, tiles, quantising=manifest.numerics == "quantized")
        subject.loads[key] = load
    return load


def _tiles(manifest: Manifest, subject: Subject) -> Tiles:
    """The first row of the manifest that serves the longest sequences."""
    if not manifest.tiles:
        return DEFAULT
    longest = max([one.seq_q for one in subject.extent.long], default=0)
    return next((one for one in manifest.tiles if one.serves(subject.request, longest)), DEFAULT)


def _occupancy(extent: Extent, units: int) -> float:
    """Share of the multiprocessors that have work while packed sequences are: the last wave is rarely full."""
    if not extent.parts:
        return 1.0
    if extent.split:  # as many parts as there are multiprocessors, of equal length
        return min(1.0, extent.parts / units)
    return extent.parts / (-(-extent.parts // units) * units)


def _tiled(subject: Subject, backward: bool, tiles: Tiles, *, quantising: bool) -> Load:
    """Tiles that somebody sees; a backend that quantises what it gets multiplies in int8."""
    bare = subject.bare.get((quantising, backward))
    if bare is None:
        bare = subject.bare[quantising, backward] = _bare(subject, quantising, backward)
    made = tiled(subject.extent, subject.request.num_q_heads, tiles, subject.rates.units)
    pairs = bare.pairs + made.pairs
    start = bare.start + bare.launch if made.parts > 1 else bare.start
    return Load(bare.matrix * pairs, bare.exp * pairs, bare.memory, start, bare.launch, bare.stored)


def _bare(subject: Subject, quantising: bool, backward: bool) -> Bare:
    request, extent = subject.request, subject.extent
    rates = subject.rates
    if quantising:
        rates = rates_of(subject.device, "int8") or rates
    occupied = _occupancy(extent, rates.units)
    kernels = SPLIT_KERNELS if extent.split and not backward else TILED_KERNELS[backward]
    return Bare(
        pairs=extent.packed * request.num_q_heads / occupied,
        matrix=_flops(request, 1.0, backward) / (request.num_q_heads * rates.matrix),
        exp=1.0 / rates.exp if rates.exp else 0.0,
        memory=_necessary(subject, backward) / (rates.memory * (occupied if extent.split else 1.0)),
        start=kernels * rates.launch + rates.ramp,
        launch=rates.launch,
        stored="memory" if (request.k_format, request.v_format) == ("dense", "dense") else "quantized",
    )


def _materialising(subject: Subject, backward: bool) -> Load:
    """Every pair, hidden or not, with scores and weights in memory; in float32, or float64."""
    request, extent = subject.request, subject.extent
    wide = "float64" if request.dtype == "float64" else "float32"
    rates = rates_of(subject.device, wide) or subject.rates
    scores = traffic.score_bytes(request, extent, backward=backward)
    return Load(
        matrix=_flops(request, extent.every, backward) / rates.matrix,
        exp=_exp_seconds(request, extent.every, rates),
        memory=(_necessary(subject, backward) + scores + traffic.widened_kv(request, extent)) / rates.memory,
        start=MATERIALISING_KERNELS[backward] * rates.launch + rates.ramp,
        launch=rates.launch,
        stored="memory",
    )


def _flops(request: Request, pairs: float, backward: bool) -> float:
    return operations.backward_flops(request, pairs) if backward else operations.forward_flops(request, pairs)


def _exp_seconds(request: Request, pairs: float, rates: Rates) -> float:
    return operations.exponentials(request, pairs) / rates.exp if rates.exp else 0.0


def _necessary(subject: Subject, backward: bool) -> float:
    made = traffic.necessary_backward if backward else traffic.necessary_forward
    return made(subject.request, subject.extent)
