"""attn-backends: which attention kernel serves a call, and why not the others. The public API, loaded lazily.

Importing this module imports nothing heavy; `attention` and whatever takes tensors import torch when first touched.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attn_backends.api import attention as attention
    from attn_backends.block_mask import BlockMask as BlockMask
    from attn_backends.calibrate.online import measure_online as measure_online
    from attn_backends.call import Call as Call
    from attn_backends.call import Grads as Grads
    from attn_backends.cascade import cascade_attention as cascade_attention
    from attn_backends.device import Device as Device
    from attn_backends.error_budget.estimate import quantization_error as quantization_error
    from attn_backends.errors import AttnBackendsError as AttnBackendsError
    from attn_backends.errors import DuplicateBackendError as DuplicateBackendError
    from attn_backends.errors import LoadError as LoadError
    from attn_backends.errors import ManifestError as ManifestError
    from attn_backends.errors import NoBackendError as NoBackendError
    from attn_backends.errors import OutOfPagesError as OutOfPagesError
    from attn_backends.errors import PolicyError as PolicyError
    from attn_backends.errors import ReferenceForbiddenError as ReferenceForbiddenError
    from attn_backends.errors import RequestError as RequestError
    from attn_backends.errors import UnfitBackendError as UnfitBackendError
    from attn_backends.errors import UnknownBackendError as UnknownBackendError
    from attn_backends.host.append_kv import append_kv as append_kv
    from attn_backends.host.graphs import watch_graphs as watch_graphs
    from attn_backends.host.ledger import launches as launches
    from attn_backends.host.profiling import profile as profile
    from attn_backends.kv_cache.cache import PagedKVCache as PagedKVCache
    from attn_backends.kv_cache.moving import copy_pages as copy_pages
    from attn_backends.kv_cache.moving import gather_kv as gather_kv
    from attn_backends.merge import merge_states as merge_states
    from attn_backends.reason import Reason as Reason
    from attn_backends.registry.environment import Environment as Environment
    from attn_backends.registry.hooking import add_hooks as add_hooks
    from attn_backends.registry.hooking import remove_hooks as remove_hooks
    from attn_backends.registry.hooks import hookimpl as hookimpl
    from attn_backends.registry.registry import Registry as Registry
    from attn_backends.registry.shortcuts import list_backends as list_backends
    from attn_backends.registry.shortcuts import register as register
    from attn_backends.registry.shortcuts import unregister as unregister
    from attn_backends.request import Request as Request
    from attn_backends.selector.decision import Decision as Decision
    from attn_backends.selector.explain import explain as explain
    from attn_backends.selector.policy import Policy as Policy
    from attn_backends.selector.scope import use as use
    from attn_backends.selector.select import cache_info as cache_info
    from attn_backends.selector.select import clear_cache as clear_cache
    from attn_backends.selector.select import select as select
    from attn_backends.window import from_sliding_window as from_sliding_window

_WHERE = {
    "attention": "api",
    "append_kv": "host.append_kv",
    "cascade_attention": "cascade",
    "copy_pages": "kv_cache.moving",
    "gather_kv": "kv_cache.moving",
    "PagedKVCache": "kv_cache.cache",
    "BlockMask": "block_mask",
    "Call": "call",
    "Grads": "call",
    "Device": "device",
    **dict.fromkeys(
        (
            "AttnBackendsError", "DuplicateBackendError", "LoadError", "ManifestError", "NoBackendError",
            "OutOfPagesError", "PolicyError", "ReferenceForbiddenError", "RequestError", "UnfitBackendError",
            "UnknownBackendError",
        ),
        "errors",
    ),
    "launches": "host.ledger",
    "profile": "host.profiling",
    "watch_graphs": "host.graphs",
    "measure_online": "calibrate.online",
    "merge_states": "merge",
    "quantization_error": "error_budget.estimate",
    "from_sliding_window": "window",
    "Reason": "reason",
    "Environment": "registry.environment",
    "add_hooks": "registry.hooking",
    "remove_hooks": "registry.hooking",
    "hookimpl": "registry.hooks",
    "Registry": "registry.registry",
    "list_backends": "registry.shortcuts",
    "register": "registry.shortcuts",
    "unregister": "registry.shortcuts",
    "Request": "request",
    "Decision": "selector.decision",
    "explain": "selector.explain",
    "Policy": "selector.policy",
    "use": "selector.scope",
    "cache_info": "selector.select",
    "clear_cache": "selector.select",
    "select": "selector.select",
}  # fmt: skip

__all__ = ["__version__", *sorted(_WHERE)]  # noqa: PLE0604  # the names are the keys of the table above


def __getattr__(name: str) -> Any:
    """Load a public name when it is first touched."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{where}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        error.add_note(f"attn_backends.{name} takes tensors; in a clone: pip install '.[torch]'")
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
