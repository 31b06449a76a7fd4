"""`docs/manifest.md`: the keys of a `backend.toml`."""

from __future__ import annotations

from attn_backends.cli.generators.markdown import code, page, refuse_unsaid, table
from attn_backends.registry.manifest import manifest_keys

INTRO = """\
A backend describes itself in a `backend.toml`: what it is, what it needs, where its code is, and, in `[[capability]]`
boxes, what it can do. Whatever is not declared is refused. A mistake is answered with file, entry and line."""

EXAMPLE = """\
```toml
schema = 1
name = "my_fa"
version = "0.1.0"
api = ">=1.0,<2"
priority = 50
requires = ["torch>=2.6"]
kernel = "my_fa_pkg.adapter:run"

[[capability]]
device = ["cuda"]
arch = { min = "8.0", max = "9.0" }
dtype = ["float16", "bfloat16"]
kv_format = ["dense"]
layout = ["bshd"]
phase = ["prefill"]
attn_type = ["decoder"]
head_dim = [64, 128]
head_dim_v = [64, 128]
gqa_ratio = "any"
seq_len = "any"
causal = [true]
causal_alignment = ["bottom_right"]
strides = "last_dim_1"
index_width = [32]
```"""

VALUES = """\
Values of an axis are a set (`[64, 128]`), a range (`{ min = 1, max = 4096 }`), multiples (`{ multiple_of = 8, max = 256 }`)
or `"any"`, which has to be written out. Axes with parts (`seq_len`) can be given part by part (`seq_q`, `seq_k`). Every
axis, with what is legal on it: [axes.md](axes.md). For editors there is a JSON Schema,
`attn_backends/registry/schema/manifest-1.schema.json`."""

MEANINGS = {
    "schema": "version of this format",
    "name": "unique name; `-` and `_` count as the same",
    "version": "the backend's own version; certificates are for exactly one",
    "api": "versions of the backend API that it was written for",
    "priority": "decides where no measurement and no model does",
    "tier": "`reference` is what calls fall to when nothing better fits, and what `forbid_reference` forbids",
    "numerics": "anything but `exact` (rounding only) is opt-in per call or policy",
    "requires": "packages, as in a requirements file; unmet ones are a reason, not an error",
    "converts": "conversions that its adapter does; each is recorded with its bytes",
    "efficiency": "shares of the device's peaks that it reaches, for the cost model: `matrix`, `exp`, `memory`; `backward`: matrix in the backward pass; `quantized`: memory where K or V is quantised",
    "start_us": "what a call takes however small it is, beyond the device's launch, for the cost model",
    "algorithm": "`materialising`: its scores go through memory; for the cost model",
    "tiles": "tiles of the kernel, for the cost model; of the rows, the first that serves a call holds (`backward`: that pass, else the forward one; `head_dim`, `longest`: at most; `causal`): `rows`, `keys` of a tile; `drain`: keys that take as long as filling and draining its pipeline; `pace`: how fast it is, 1 being the shares in `efficiency`; `resident`: tiles on a multiprocessor at a time; `balanced`: handed out as multiprocessors get free; `split`: keys are split where tiles are few; `packs`: the query heads of a group share tiles, `always`, or `to_fill` them; `uniform`: short sequences beside longer ones take tiles of as many rows",
    "kernel": "`run(call)`: writes `call.out`, and `call.lse` if asked",
    "check": "`check(request, device)`: reasons that data cannot say; imports no torch",
    "plan": "`plan(call)`: made outside graph capture and kept",
    "backward": "`backward(call, d_out, d_lse)`: gradients",
    "workspace": "`workspace(request)`: bytes, known before any allocation",
    "capability": "boxes; a request fits the backend if it fits one of them whole",
}


def render() -> str:
    """The page."""
    keys = manifest_keys()
    refuse_unsaid(keys, MEANINGS, "generators/manifest.py")
    rows = ((code(name), legal, MEANINGS[name]) for name, legal in keys.items())
    return page("Manifest", INTRO, EXAMPLE, "## Keys", table(("key", "legal", "meaning"), rows), "## Boxes", VALUES)
