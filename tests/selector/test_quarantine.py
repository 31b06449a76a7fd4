"""Quarantine and gaps: known-bad combinations are refused, by exact length, version and architecture."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from attn_backends import Environment, ManifestError, Policy, Registry, UnfitBackendError, select
from attn_backends.selector.quarantine import read_entries, shipped_entries
from tests.selector.scenes import BOX, backend, codes, registry, request

CUDNN = dict.fromkeys(("backward", "mask", "bias"), "any")
BACKWARD = {"needs_backward": True, "causal": False, "num_kv_heads": 8}


def _registry() -> Registry:
    """One backend of the quarantined name that declares everything, whatever the real one declares just now."""
    return registry(backend("sdpa_cudnn", box=CUDNN))


def _decide(changes, device="b200", environment=None, **policy):
    asked = request(**changes)
    return select(asked, device=device, environment=environment, policy=Policy(**policy), registry=_registry())


@pytest.mark.parametrize(
    ("device", "kv_heads", "out"),
    [("b200", 4, True), ("b200", 7, True), ("b200", 8, False), ("h200", 4, False), ("sm_103", 1, True)],
)
def test_cudnn_with_few_kv_heads_on_sm100(device, kv_heads, out):
    """The first seed: sdpa_cudnn on sm_100 to sm_103 with fewer than 8 KV heads, and nowhere else."""
    decision = _decide({"num_q_heads": 56, "num_kv_heads": kv_heads}, device)
    assert ("quarantine" in codes(decision, "sdpa_cudnn")) == out
    if out:
        assert "github.com" in decision.candidate("sdpa_cudnn").reasons[0].message


def test_the_seeds_are_of_a_backend_that_is_there():
    """The quarantined name is a built-in backend."""
    assert {entry.backend for entry in shipped_entries()} <= set(Registry(autoload=False).snapshot().names())


@pytest.mark.parametrize(
    ("changes", "out"),
    [
        ({"mask": "bool", "seq_k": 192}, True),
        ({"mask": "bool", "seq_k": 64}, True),
        ({"mask": "bool", "seq_k": 191}, False),
        ({"mask": "bool", "seq_k": 256}, False),
        ({"bias": True, "seq_k": 192}, True),
        ({"seq_k": 192}, False),
        ({"mask": "bool", "seq_k": 192, "needs_backward": False}, False),
    ],
    ids=["192", "64", "191", "256", "float-mask", "no-mask", "forward-only"],
)
def test_cudnn_backward_with_a_mask_at_64_of_128(changes, out):
    """The second seed: a mask, gradients and seq_k % 128 == 64; other lengths of the same bucket are not touched."""
    decision = _decide({**BACKWARD, **changes}, "h200")
    assert ("quarantine" in codes(decision, "sdpa_cudnn")) == out


@pytest.mark.parametrize(
    ("version", "out"),
    [("2.10", False), ("2.11", True), ("2.13", True), (None, True)],
    ids=["2.10", "2.11", "2.13", "unknown"],
)
def test_an_entry_holds_for_its_versions(version, out):
    """Another torch is not quarantined; an unknown one is."""
    environment = Environment.pretend(torch=version) if version else Environment.pretend()
    decision = _decide({**BACKWARD, "mask": "bool", "seq_k": 192}, "h200", environment)
    assert ("quarantine" in codes(decision, "sdpa_cudnn")) == out


def test_the_policy_lifts_it():
    """allow_quarantined lets the combination through the quarantine, and only through that."""
    few = {"num_q_heads": 8, "num_kv_heads": 4}
    assert codes(_decide(few), "sdpa_cudnn") == {"quarantine"}
    lifted = _decide(few, allow_quarantined=True)
    assert codes(lifted, "sdpa_cudnn") == set()


def test_a_forced_quarantined_backend_raises():
    """Explicit and quarantined raises as well, with the evidence."""
    with pytest.raises(UnfitBackendError, match="quarantine"):
        select(request(num_kv_heads=4), backend="sdpa_cudnn", device="b200", registry=_registry())


def test_two_lengths_of_one_bucket_have_two_ids():
    """A quarantined length and its neighbour are different decisions under different ids."""
    changes = {**BACKWARD, "mask": "bool"}
    in_it, beside = (_decide({**changes, "seq_k": size}, "h200") for size in (192, 191))
    assert in_it.id != beside.id


def test_every_shipped_entry_has_evidence_and_is_not_forgotten():
    """An entry has a URL, a reason, and a day to look again that is still to come."""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    for entry in shipped_entries():
        assert entry.evidence.startswith("https://")
        assert len(entry.reason) > 20
        assert entry.expires > today, f"{entry.id}: look again whether it still holds"


ENTRY = 'id = "x"\nbackend = "mine"\nwhen = { softcap = [true] }\nreason = "r"\nevidence = "https://e"\nexpires = 2099-01-01\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENTRY.replace("reason", "raeson"), ["[[gap]] 1", "raeson", "reason"]),
        (ENTRY.replace('evidence = "https://e"\n', ""), ["missing evidence"]),
        (ENTRY.replace("softcap", "softcup"), ["softcup", "softcap"]),
        (ENTRY + 'versions = ["torch>>2"]\n', ["[[gap]] 1"]),
        ("= 3", ["attn-gaps.toml"]),
    ],
    ids=["unknown-key", "missing-key", "unknown-axis", "bad-version", "not-toml"],
)
def test_an_illegal_entry_is_named(tmp_path, text, words):
    """A ManifestError names file, entry and the nearest key."""
    file = tmp_path / "attn-gaps.toml"
    file.write_text(f"[[gap]]\n{text}")
    with pytest.raises(ManifestError) as caught:
        read_entries(file, "gap", "attn-gaps.toml")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.fixture
def with_gap(tmp_path):
    """A backend whose own folder declares a gap for softcap in version 1."""
    box = {**BOX, "softcap": [False, True]}
    lines = ["[[capability]]", *(f"{axis} = {json.dumps(value)}" for axis, value in box.items())]
    head = 'schema = 1\nname = "mine"\nversion = "1.2"\napi = ">=1.0,<2"\nkernel = "nowhere:run"\n'
    (tmp_path / "backend.toml").write_text(head + "\n".join(lines))

    def make(extra: str = "") -> Registry:
        (tmp_path / "attn-gaps.toml").write_text(f"[[gap]]\n{ENTRY}{extra}")
        made = Registry(builtin=False, autoload=False)
        made.register(tmp_path / "backend.toml")
        return made

    return make


def test_a_declared_gap_is_refused(with_gap):
    """A gap in the backend's own file is reason `gap`, inside its box alone, and no policy lifts it."""
    made = with_gap()
    policy = Policy(allow_quarantined=True)
    inside = select(request(softcap=2.0), device="h200", registry=made, policy=policy)
    assert codes(inside, "mine") == {"gap"}
    assert select(request(), device="h200", registry=made).backend == "mine"


@pytest.mark.parametrize(("versions", "out"), [("<1.2", False), (">=1.2", True)])
def test_a_gap_holds_for_its_backend_versions(with_gap, versions, out):
    """A gap of another version of the backend does not count."""
    made = with_gap(f'backend_version = "{versions}"\n')
    decision = select(request(softcap=2.0), device="h200", registry=made)
    assert (codes(decision, "mine") == {"gap"}) == out


BAD_GAPS = {
    "not TOML": "gap = [",
    "not a list": "gap = 3\n",
    "not tables": "gap = [3]\n",
    "missing keys": '[[gap]]\nid = "x"\n',
    "when is a text": "[[gap]]\n" + ENTRY.replace("{ softcap = [true] }", '"x"'),
    "when is illegal": "[[gap]]\n" + ENTRY.replace("[true]", "3"),
    "versions is a number": f"[[gap]]\n{ENTRY}versions = 3\n",
    "versions holds a number": f"[[gap]]\n{ENTRY}versions = [3]\n",
    "backend_version is a number": f"[[gap]]\n{ENTRY}backend_version = 3\n",
    "backend is a number": "[[gap]]\n" + ENTRY.replace('"mine"', "3"),
    "reason is a number": "[[gap]]\n" + ENTRY.replace('"r"', "3"),
}


@pytest.mark.parametrize("text", [*BAD_GAPS.values(), None], ids=[*BAD_GAPS.keys(), "a folder"])
def test_an_illegal_gaps_file_puts_its_own_backend_out(with_gap, tmp_path, text):
    """Whatever is wrong with the file, its backend alone is out, with reason load_error that names the file."""
    made = with_gap()
    gaps = tmp_path / "attn-gaps.toml"
    gaps.unlink()
    gaps.mkdir() if text is None else gaps.write_text(text)
    made.register(backend("other"), print)
    decision = select(request(), device="h200", registry=made)
    assert decision.backend == "other"
    assert codes(decision, "mine") == {"load_error"}
    assert "attn-gaps.toml" in str(decision.candidate("mine").reasons[0])
