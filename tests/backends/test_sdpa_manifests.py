"""The torch backends' manifests: what they declare they do, what they do not declare they refuse."""

from __future__ import annotations

import random
import tomllib

import pytest
import torch

from tests.backends.sdpa_calls import (
    BACKENDS,
    DEVICES,
    FOLDER,
    MASKS,
    Case,
    adapter,
    admits,
    boxes,
    call_of,
    check,
    device_of,
    given_for,
    manifest,
    misses,
    request_of,
)
from tests.backends.sdpa_cases import BIASED, CAUSAL, FORWARD, MASKED

DRAWS = 50

# What no torch backend of this package serves, as changes to a plain request.
NEVER = {
    "sinks": {"sinks": True},
    "dropout": {"dropout_p": 0.1},
    "packed": {"layout": "thd", "varlen": True},
    "varlen": {"varlen": True},
    "block mask": {"block_mask_size": 128},
    "pages": {"page_size": 16, "kv_layout": "NHD"},
    "fp8 keys": {"k_format": "scaled-fp8-e4m3", "v_format": "scaled-fp8-e4m3", "k_granularity": "per_tensor"},
    "batch invariance": {"batch_invariant": True},
    "nan safety": {"nan_safe": True},
    "sink gradients": {"sinks": True, "needs_backward": True, "grad_sinks": True},
}

# What only some serve.
ONLY = {
    "softcap": ({"softcap": 30.0}, {"flex"}),
    "alibi": ({"alibi": True}, {"flex"}),
    "bool mask": ({"mask": "bool"}, {"sdpa_math", "sdpa_mem_efficient", "sdpa_cpu_flash"}),
    "bias": ({"bias": True}, {"sdpa_math", "sdpa_cpu_flash"}),
    "bias gradient": ({"bias": True, "needs_backward": True, "grad_bias": True}, {"sdpa_math"}),
    "bias under gradients": ({"bias": True, "needs_backward": True}, {"sdpa_math"}),
    "gradient of the LSE": ({"return_lse": True, "needs_backward": True}, {"sdpa_math", "flex"}),
    "lengths": ({"dense_lengths": True}, {"sdpa_math", "sdpa_mem_efficient", "sdpa_cpu_flash"}),
    "window": ({"window_left": 3}, set(BACKENDS) - {"sdpa_cudnn"}),
    "top-left": ({"causal": True, "seq_k": 40, "causal_alignment": "top_left"}, set(BACKENDS) - {"sdpa_flash"}),
    "bottom-right": ({"causal": True, "seq_k": 40}, set(BACKENDS) - {"sdpa_cudnn"}),
    "graphs": ({"graph": "always"}, {"sdpa_math", "sdpa_flash", "sdpa_mem_efficient", "sdpa_cudnn"}),
    "heads wider than 512": ({"head_dim_qk": 576, "head_dim_v": 1024}, {"sdpa_math", "sdpa_mem_efficient", "sdpa_cpu_flash"}),
    "heads wider than 1024": ({"head_dim_qk": 1025}, {"sdpa_math", "sdpa_cpu_flash"}),
    "window of one query": ({"seq_q": 1, "window_left": 3}, set(BACKENDS)),
    "out dtype": ({"out_dtype": "float16"}, set(BACKENDS)),
    "out dtype under gradients": ({"out_dtype": "float64", "needs_backward": True}, set(BACKENDS)),
    "64-bit offsets": ({"seq_k": 2**22, "num_kv_heads": 8, "num_q_heads": 8, "head_dim_qk": 128}, {"sdpa_math", "sdpa_cpu_flash"}),
}  # fmt: skip


def _plain(name):
    """(request, device) that the backend is made for."""
    if name == "sdpa_cpu_flash":
        return request_of(Case("plain", lse=False, q_heads=8, kv_heads=8), torch.float32), device_of("cpu")
    from attn_backends.device import Device

    request = request_of(Case("plain", lse=False, q_heads=8, kv_heads=8, head_dim=64), torch.bfloat16)
    return request, Device(kind="cuda", name="sm_90", arch=(9, 0))


@pytest.mark.parametrize("name", BACKENDS)
def test_manifest_names_what_the_adapter_has(name):
    """Kernel, backward and conversions exist; a box declares gradients only beside a `backward`."""
    raw = manifest(name)
    module = adapter(name)
    assert raw["name"] == name
    assert raw["kernel"] == f"attn_backends.backends.{name}.adapter:run"
    assert callable(module.run)
    assert callable(module.conversions)
    declares = any(True in box.get("backward", []) for box in raw["capability"])
    assert declares == ("backward" in raw)
    assert not declares or callable(module.backward)
    assert boxes(name)


@pytest.mark.parametrize("name", BACKENDS)
def test_manifest_admits_what_it_is_made_for(name):
    """The plain request, without which the refusals below would prove nothing."""
    request, device = _plain(name)
    assert not misses(name, request, device)


@pytest.mark.parametrize("feature", NEVER)
@pytest.mark.parametrize("name", BACKENDS)
def test_what_no_backend_does_is_refused(name, feature):
    """A feature outside every manifest is refused, never ignored."""
    request, device = _plain(name)
    assert misses(name, request.replace(**NEVER[feature]), device)


@pytest.mark.parametrize("feature", ONLY)
@pytest.mark.parametrize("name", BACKENDS)
def test_what_some_backends_do_is_refused_by_the_others(name, feature):
    """Exactly the backends that do it declare it."""
    changes, doers = ONLY[feature]
    request, device = _plain(name)
    expected = name in doers and not (name == "sdpa_math" and changes.get("graph") and device.kind == "cpu")
    assert admits(name, request.replace(**changes), device) == expected


def test_architectures_have_an_upper_bound():
    """No GPU kernel is declared for an architecture that nobody has seen."""
    from attn_backends.device import Device

    for name in set(BACKENDS) - {"sdpa_math"}:
        request, _device = _plain(name)
        assert not admits(name, request, Device(kind="cuda", name="later", arch=(19, 0))), name


def test_priorities_are_the_measured_order():
    """Fused before general, general before plain; every one before the reference."""
    order = sorted(BACKENDS, key=lambda name: -manifest(name)["priority"])
    gpu = [name for name in order if name != "sdpa_cpu_flash"]
    assert gpu == ["sdpa_cudnn", "sdpa_flash", "sdpa_mem_efficient", "flex", "sdpa_math"]
    assert manifest("sdpa_cpu_flash")["priority"] > manifest("sdpa_math")["priority"] > 0


def _drawn(name, device, dice):
    """A random small case that the manifest admits, with its dtype; None if this draw is not admitted."""
    case = Case(
        "drawn",
        batch=dice.choice((1, 2, 3)),
        seq_q=dice.choice((0, 1, 2, 7, 16, 33)),
        seq_k=dice.choice((0, 1, 3, 8, 16, 45)),
        kv_heads=(kv := dice.choice((1, 2, 3))),
        q_heads=kv * dice.choice((1, 1, 2, 4)),
        head_dim=dice.choice((1, 8, 13, 16, 40, 64)),
        head_dim_v=dice.choice((None, None, 8, 21)),
        causal=dice.random() < 0.6,
        alignment=dice.choice(("bottom_right", "top_left")),
        left=dice.choice((-1, -1, 0, 3)),
        right=dice.choice((-1, -1, 0, 2)),
        scale=dice.choice((None, None, 0.4, 0.0, -0.3)),
        mask=dice.choice((None, None, *(mask for mask in MASKS if "lowest" not in mask))),
        layout=dice.choice(("bshd", "bhsd")),
        memory=dice.choice(("contiguous", "head_major", "row_odd", "row_step2", "last_dim_step2")),
        lse=dice.random() < 0.5,
        out_dtype=dice.choice((None, None, "float16", "bfloat16", "float32", "float64")),
        grads=dice.random() < 0.5,
        seed=dice.randrange(1000),
    )
    if dice.random() < 0.25:
        case = case.but(seq_lens=tuple(dice.randint(0, case.seq_k) for _ in range(case.batch)))
    dtype = dice.choice((torch.float32, torch.bfloat16, torch.float16, torch.float64))
    return (case, dtype) if admits(name, request_of(case, dtype), device_of(device)) else None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "flex"])
def test_every_admitted_call_is_right(name, device):
    """Random calls over the declared axes: no reason against a call means that the call is right."""
    dice = random.Random(f"{name} {device}")
    drawn = [found for _ in range(3000) if (found := _drawn(name, device, dice))][:DRAWS]
    for case, dtype in drawn:
        try:
            check(name, case, dtype, device)
        except Exception as error:
            raise AssertionError(f"{name} on {device}: {case} in {dtype}: {error}") from error


@pytest.mark.parametrize("name", BACKENDS)
def test_conversions_are_declared(name):
    """Whatever `conversions` reports for any case, the manifest lists."""
    declared = set(manifest(name)["converts"])
    request, device = _plain(name)
    dtype = getattr(torch, request.dtype)
    for case in FORWARD:
        for memory in ("contiguous", "last_dim_step2"):
            case = case.but(memory=memory, lse=False)
            if admits(name, request_of(case, dtype), device):
                call = call_of(case, given_for(case, dtype), "cpu")
                assert {found for found, _size in adapter(name).conversions(call)} <= declared, case.id


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case("plain", lse=False), []),
        (Case("strided", memory="row_odd"), ["make_contiguous"]),
        (Case("decode", seq_q=1, causal=True, seq_k=40), ["flip_alignment"]),
        (CAUSAL[1], ["expand_mask", "flip_alignment", "sanitize_kv"]),
        (CAUSAL[2], ["flip_alignment"]),
        (CAUSAL[3], []),
        (MASKED[0], ["expand_mask", "sanitize_kv"]),
        (BIASED[0], ["expand_mask", "sanitize_kv"]),
        (Case("no keys", seq_k=0), []),
    ],
    ids=lambda value: getattr(value, "id", None),
)
def test_conversions_say_what_happens(case, expected):
    """Names of what `run` converts, for a kernel with a top-left diagonal; bytes only where something is written."""
    call = call_of(case, given_for(case, torch.float32), "cpu")
    found = adapter("sdpa_cpu_flash").conversions(call)
    assert sorted(name for name, _size in found) == sorted(expected)
    assert all((size > 0) == (name != "flip_alignment") for name, size in found)


def test_shared_pieces_are_no_backend():
    """`torch_sdpa` is a library: nothing lists it."""
    assert not (FOLDER / "torch_sdpa" / "backend.toml").exists()
    assert all(tomllib.loads((FOLDER / name / "backend.toml").read_text())["schema"] == 1 for name in BACKENDS)
