"""Requests and decisions as values: one form for equal numbers, copies, pickles, and records that are none."""

from __future__ import annotations

import copy
import pickle

import pytest

from attn_backends import (
    AttnBackendsError,
    Decision,
    Environment,
    Policy,
    PolicyError,
    Registry,
    Request,
    RequestError,
    clear_cache,
    select,
    use,
)
from attn_backends.capability import FITS_ANY, REQUIRED
from attn_backends.fields import MISSING
from tests.selector.scenes import backend, decide, registry, request

MADE = registry()


@pytest.mark.parametrize(
    ("one", "other"),
    [({"softcap": 30}, {"softcap": 30.0}), ({"softmax_scale": -0.0}, {"softmax_scale": 0}), ({"dropout_p": 0}, {"dropout_p": -0.0})],
    ids=["softcap", "scale", "dropout"],
)  # fmt: skip
def test_equal_requests_have_one_json_and_one_id(one, other):
    """30 and 30.0, 0.0 and -0.0 ask the same, print the same and are decided under the same id."""
    a, b = request(**one), request(**other)
    assert a == b
    assert repr(a.to_json()) == repr(b.to_json())
    first = decide(MADE, request=a)
    clear_cache()
    assert decide(MADE, request=b).id == first.id


@pytest.mark.parametrize("field", ["softcap", "softmax_scale", "dropout_p"])
def test_a_number_beyond_floats_is_a_request_error(field):
    """An int that no float holds is refused with the field's name."""
    with pytest.raises(RequestError, match=field):
        request(**{field: 10**400})


@pytest.mark.parametrize("data", ["{}", [1], None, {"unknown": 5}, {5: 1}], ids=repr)
def test_json_that_is_no_request_is_a_request_error(data):
    """Text, lists and odd values are refused as RequestError."""
    with pytest.raises(RequestError):
        Request.from_json(data)


def _broken_records():
    whole = decide(MADE).to_json()
    for key in whole:
        if key not in ("forced", "downcast"):
            yield key, {name: value for name, value in whole.items() if name != key}
        yield key, {**whole, key: 5}
        if key != "environment":  # a later version may say more of it
            yield key, {**whole, key: {"no_such_key": 1}}
    yield "candidates", {**whole, "candidates": [{"name": "a"}]}
    yield "nearest", {**whole, "nearest": [{"backend": "a", "changes": [{"axis": "arch"}]}]}


def test_a_malformed_record_is_a_value_error_that_names_the_key():
    """Whatever is missing or of another kind in a record, the ValueError names its key."""
    for key, record in _broken_records():
        with pytest.raises(ValueError, match=key):
            Decision.from_json(record)
    for text in ("{", "[]", "5"):
        with pytest.raises(ValueError):  # noqa: PT011  # text without keys
            Decision.from_json(text)


@pytest.mark.parametrize(
    "act",
    [
        lambda: select(request(), device=5, registry=MADE),
        lambda: select(request(), device="h200", registry=MADE, measurements={}),
        lambda: select(request(), device="h200", registry=MADE, measurements={"a": 1.0}),
        lambda: use(5).__enter__(),
        lambda: use(policy={"only": ["a"]}).__enter__(),
        lambda: use("a", phase={}).__enter__(),
    ],
    ids=["device", "no-store", "dict-of-times", "use-number", "use-dict", "use-table"],
)
def test_an_argument_of_another_kind_is_a_typed_error(act):
    """RequestError or PolicyError at once, never an AttributeError from the inside."""
    with pytest.raises((RequestError, PolicyError)):
        act()


RULES = Policy(rules=[{"when": {"phase": "decode", "seq_k": {"min": 5}, "arch": [9, 0]}, "prefer": ["a"]}])


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "deepcopy", "pickle"])  # fmt: skip
def test_copies_are_equal(twin):
    """Decisions, policies with rules, requests and environments survive copy and pickle; sentinels stay themselves."""
    decision = decide(MADE, {"prefer": ["a"]})
    assert twin(decision) == decision
    assert (twin(decision).id, hash(twin(decision))) == (decision.id, hash(decision))
    assert twin(RULES) == RULES
    assert hash(twin(RULES)) == hash(RULES)
    asked = request(phase="decode", seq_q=1, seq_k=9)
    assert twin(RULES).for_request(asked, decision.device) == RULES.for_request(asked, decision.device)
    assert twin(decision.request) == decision.request
    assert twin(Environment.pretend(torch="2.11")) == Environment.pretend(torch="2.11")
    assert [twin(one) for one in (FITS_ANY, REQUIRED, MISSING)] == [FITS_ANY, REQUIRED, MISSING]
    assert twin(FITS_ANY) is FITS_ANY


@pytest.mark.parametrize("act", [lambda: request(seqq=1), lambda: decide(MADE, backend="aa"), lambda: decide(registry(backend("a", box={"dtype": ["float32"]})), backend="a")], ids=["request", "unknown", "unfit"])  # fmt: skip
def test_errors_can_be_pickled(act):
    """An error comes back with its text, its fields and its decision."""
    with pytest.raises(AttnBackendsError) as caught:
        act()
    back = pickle.loads(pickle.dumps(caught.value))
    assert (type(back), str(back)) == (type(caught.value), str(caught.value))
    assert getattr(back, "hint", None) == getattr(caught.value, "hint", None)
    assert back.decision == caught.value.decision


def test_a_record_holds_no_absolute_path():
    """Texts of failed loads and checks lose their folders in explain() and to_json()."""
    made = registry(backend("a"), backend("b"))
    made.remember_failure("b", "b: cannot open /home/somebody/secret/lib/kernel.so")
    made.unregister("a")

    def check(request, device):
        raise OSError("no such file /srv/private/place/limits.json")

    made.register(backend("a"), print, check=check)
    decision = decide(made)
    for text in (decision.explain(), str(decision.to_json())):
        assert "kernel.so" in text
        assert "limits.json" in text
        assert "somebody" not in text
        assert "private" not in text


def test_a_manifest_keeps_what_was_registered():
    """A dict that its owner changes later changes no manifest."""
    raw = backend("a", box={"softcap": [False, True]})
    made = Registry(builtin=False, autoload=False).register(raw, print)
    raw["capability"][0]["softcap"][:] = [False]
    assert made.raw["capability"][0]["softcap"] == [False, True]
