"""Planning: which attention calls a model makes, read off its Hugging Face `config.json`. No torch, no transformers.

    config = load_config("gemma-2-9b-it")          # or a path
    for kind in layer_kinds(config):               # 21 x "sliding 4096", 21 x "full"
        for phase, request in ((one.phase, one.request) for one in requests(kind)):
            ...                                    # select(request, device=Device.pretend("h200"))

It reads structure, never names, and picks no backend. Uses the light core alone.
"""

from attn_backends.planning.errors import ConfigError
from attn_backends.planning.layer_kind import LayerKind
from attn_backends.planning.layers import layer_kinds
from attn_backends.planning.phases import PhaseRequest, requests
from attn_backends.planning.shipped import load_config, shipped

__all__ = ["ConfigError", "LayerKind", "PhaseRequest", "layer_kinds", "load_config", "requests", "shipped"]
