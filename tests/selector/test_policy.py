"""Policies: what they take, what they refuse with which words, and how they are laid over one another."""

from __future__ import annotations

import copy
import pickle
import re
from contextlib import nullcontext

import pytest

from attn_backends import Environment, Policy, PolicyError, Reason, ReferenceForbiddenError, Registry
from tests.selector.scenes import backend, codes, decide, registry, request

ONE, TWO = {"when": {"phase": ["decode"]}, "block": ["a"]}, {"when": {}, "prefer": ["b"]}
LEGAL = """
only = ["b", "a"]
block = ["c"]
prefer = ["b", "a"]
numerics = ["exact", "quantized"]
allow_downcast = true
trust = ["d"]
[[rules]]
when = { phase = ["decode"], seq_k = { min = 100 } }
prefer = ["a"]
"""


@pytest.mark.parametrize(
    "text", [LEGAL, "[policy]\n" + LEGAL.replace("[[rules]]", "[[policy.rules]]")], ids=["top", "table"]
)
def test_a_policy_file_is_read_whole(tmp_path, text):
    """Keys stand at the top or under [policy]; what is read is what a Policy made by hand would be."""
    file = tmp_path / "policy.toml"
    file.write_text(text)
    rule = {"when": {"phase": ["decode"], "seq_k": {"min": 100}}, "prefer": ["a"]}
    by_hand = Policy(
        only={"a", "b"}, block={"c"}, prefer=("b", "a"), numerics={"exact", "quantized"}, allow_downcast=True,
        trust={"d"}, rules=(rule,),
    )  # fmt: skip
    assert Policy.from_toml(file) == by_hand
    assert Policy.from_dict(by_hand.to_json()) == by_hand
    assert hash(Policy.from_toml(file)) == hash(by_hand)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"preferred": ["a"]}, ["preferred", "unknown key", "prefer"]),
        ({"prefer": "a"}, ["prefer", "a list of names"]),
        ({"block": [1]}, ["block", "a list of names"]),
        ({"numerics": ["fast"]}, ["numerics", "exact", "approximate"]),
        ({"numerics": []}, ["numerics", "non-empty"]),
        ({"allow_downcast": 1}, ["allow_downcast", "true or false"]),
        ({"pin": ["a"]}, ["pin", "a backend name"]),
        ({"rules": [{"prefer": ["a"]}]}, ["rule 1", "when"]),
        ({"rules": 5}, ["rules", "5", "a list of rules"]),
        ({"rules": {"when": {}}}, ["rules", "a list of rules"]),
        ({"rules": [{"when": "decode"}]}, ["rule 1", "when", "decode", "a table"]),
        ({5: ["a"]}, ["5", "unknown key"]),
        (3, ["policy", "3", "a table of only"]),
        ({"rules": [{"when": {"phase": ["decode"]}, "prefered": ["a"]}]}, ["rule 1", "prefered", "prefer"]),
        ({"rules": [{"when": {"phse": ["decode"]}}]}, ["rule 1", "phse", "phase"]),
        ({"rules": [{"when": {"phase": ["decoding"]}}]}, ["rule 1", "decoding", "decode"]),
        ({"rules": [{"when": {}}, {"when": {}, "rules": []}]}, ["rule 2", "rules"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_illegal_policy_says_what_is_legal(data, words):
    """A PolicyError names the key, what it got, and what is legal or nearest."""
    with pytest.raises(PolicyError) as caught:
        Policy.from_dict(data)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("key", "words"), [("blok", "unknown key; did you mean block?"), ("text", "unknown key; known: allow_downcast")]
)
def test_an_unknown_key_is_a_policy_error_in_python_too(key, words):
    """A mistyped argument names the nearest key, as a mistyped line of a file does."""
    with pytest.raises(PolicyError, match=f"policy {key}: {re.escape(words)}"):
        Policy(**{key: ["a"]})


def test_a_policy_is_copied_and_pickled():
    """Processes of a benchmark take their policy with them."""
    policy = Policy(block={"a"}, prefer=("b",))
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy


def test_a_policy_table_that_is_none_is_a_policy_error(tmp_path):
    """`policy = 3` in a file is no policy."""
    (tmp_path / "policy.toml").write_text("policy = 3")
    with pytest.raises(PolicyError, match="got 3"):
        Policy.from_toml(tmp_path / "policy.toml")


@pytest.mark.parametrize("text", [None, "only = [", "\xff"], ids=["missing", "not-toml", "not-text"])
def test_an_unreadable_policy_file_is_a_policy_error(tmp_path, text):
    """A file that is not there or is no TOML is a PolicyError with the file's name."""
    file = tmp_path / "rules.toml"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(PolicyError, match=r"rules\.toml"):
        Policy.from_toml(file)


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({"block": ["a"]}, {"block": ["b"]}, {"block": ["a", "b"]}),
        ({"only": ["a", "b"]}, {"only": ["b", "c"]}, {"only": ["b"]}),
        ({"prefer": ["a", "b"]}, {"prefer": ["c", "a"]}, {"prefer": ["c", "a", "b"]}),
        ({"trust": ["a"]}, {"trust": ["b"]}, {"trust": ["a", "b"]}),
        ({"rules": [ONE]}, {"rules": [TWO]}, {"rules": [ONE, TWO]}),
        ({"pin": "a"}, {"pin": "b"}, {"pin": "b"}),
        ({"numerics": ["exact", "quantized"]}, {"numerics": ["approximate"]}, {"numerics": ["approximate"]}),
    ],
)
def test_policies_are_laid_over_one_another(base, over, merged):
    """Bans and trust grow, `only` narrows, orders go in front, rules come after, the rest replaces."""
    assert Policy(**base).overlaid(over) == Policy(**merged)


@pytest.mark.parametrize(
    ("changes", "winner"),
    [({"phase": "decode", "seq_q": 1}, "a"), ({}, "b"), ({"phase": "decode", "seq_q": 1, "seq_k": 99}, "b")],
    ids=["rule-holds", "other-phase", "too-short"],
)
def test_a_rule_counts_where_its_conditions_hold(changes, winner):
    """A rule on phase and length prefers a backend there and nowhere else."""
    rule = {"when": {"phase": ["decode"], "seq_k": {"min": 100}}, "prefer": ["a"]}
    assert decide(registry(), {"rules": [rule]}, request=request(**changes)).backend == winner


def test_a_rule_splits_a_bucket():
    """Lengths of one power of two are decided apart where a rule draws a line between them."""
    policy = {"rules": [{"when": {"seq_k": {"max": 700}}, "block": ["b"]}]}
    made = registry()
    winners = {size: decide(made, policy, request=request(seq_k=size)).backend for size in (699, 700, 701, 1000)}
    assert winners == {699: "a", 700: "a", 701: "b", 1000: "b"}


def test_later_rules_lie_over_earlier_ones():
    """Rules are laid over in their order."""
    rules = [{"when": {}, "prefer": ["b"]}, {"when": {"dtype": ["bfloat16"]}, "prefer": ["a"]}]
    assert decide(registry(), {"rules": rules}).backend == "a"


def test_only_is_a_set_and_prefer_an_order():
    """Reordering `only` changes neither the answer nor its id; reordering `prefer` changes both."""
    made = registry()
    one, two = decide(made, {"only": ["a", "b"]}), decide(made, {"only": ["b", "a"]})
    assert (one.backend, one.id) == (two.backend, two.id) == ("b", one.id)
    first, second = decide(made, {"prefer": ["a", "b"]}), decide(made, {"prefer": ["b", "a"]})
    assert (first.backend, second.backend) == ("a", "b")
    assert first.id != second.id


def test_a_blocked_backend_is_out_whatever_else_names_it():
    """`block` beats `only` and `prefer`."""
    decision = decide(registry(), {"block": ["b"], "only": ["b", "a"], "prefer": ["b"]})
    assert decision.backend == "a"
    assert codes(decision, "b") == {"blocked"}


def test_a_rule_may_forbid_the_reference():
    """forbid_reference may be asked of some calls only."""
    made = registry(backend("ref", tier="reference"))
    policy = {"rules": [{"when": {"phase": ["decode"]}, "forbid_reference": True}]}
    assert decide(made, policy).backend == "ref"
    with pytest.raises(Exception, match="reference"):
        decide(made, policy, request=request(phase="decode"))


def test_a_name_that_nobody_has_is_warned_about_once(caplog):
    """A misspelt name in a policy blocks nothing, and says so once, with the nearest name."""
    machines = registry(backend("eager_like"))
    for length in (8, 80):
        decide(machines, {"block": ["eagre_like"]}, request=request(seq_k=length))
    said = [record.getMessage() for record in caplog.records if "eagre_like" in record.getMessage()]
    assert len(said) == 1
    assert "did you mean eager_like" in said[0]


@pytest.mark.parametrize(
    ("changes", "keys", "error"),
    [
        ({"softcap": 2.0}, {}, ReferenceForbiddenError),
        ({"softcap": 2.0, "sinks": True}, {}, None),
        ({"softcap": 2.0}, {"requires": ["absent>=1"]}, None),
        ({"softcap": 2.0}, {"numerics": "quantized"}, None),
    ],
    ids=["fits", "axis", "requirement", "numerics"],
)
def test_a_forbidden_reference_is_an_error_where_it_would_have_served(changes, keys, error):
    """A reference that could not serve anyway leaves a plain decision without a backend."""
    made = registry(backend("a"), backend("ref", tier="reference", box={"softcap": [False, True]}, **keys))
    policy = {"forbid_reference": True}
    with pytest.raises(error) if error else nullcontext():
        decision = decide(made, policy, request=request(**changes), environment=Environment())
        assert decision.backend is None
        assert "blocked" not in codes(decision, "ref")


def test_a_check_counts_before_the_reference_is_forbidden():
    """A reference whose own check refuses is not said to be forbidden."""
    made = Registry(builtin=False, autoload=False)
    made.register(backend("ref", tier="reference"), print, check=lambda *_: [Reason("smem", "smem", 2, "at most 1")])
    decision = decide(made, {"forbid_reference": True})
    assert (decision.backend, codes(decision, "ref")) == (None, {"smem"})


BY_BATCH = {"when": {"batch": {"min": 4}}, "prefer": ["a"], "pin": "a", "rank_hooks": ["nobody"]}


@pytest.mark.parametrize("size", ["batch", "total_q", "total_k", "num_pages"])
def test_a_rule_on_the_batch_ranks_no_batch_invariant_call(size):
    """Its order and its pin count for other calls alone; what it bans stays banned."""
    made = registry(*[backend(n, priority=p, box={"batch_invariant": "any", "page_size": "any", "kv_layout": "any"}) for n, p in (("a", 1), ("b", 2))])  # fmt: skip
    rule = {**BY_BATCH, "when": {size: {"min": 4}}}
    sizes = {"batch": 8, "total_q": 4096, "total_k": 4096, "num_pages": 4096, "page_size": 16}
    asked = request(**sizes)
    invariant = asked.replace(batch_invariant=True)
    assert decide(made, {"rules": [rule]}, request=asked).backend == "a"
    assert decide(made, {"rules": [rule]}, request=invariant).backend == "b"
    assert decide(made, {"rules": [{**rule, "block": ["b"]}]}, request=invariant).backend == "a"
    assert decide(made, {"rules": [{**rule, "when": {"seq_k": {"min": 4}}}]}, request=invariant).backend == "a"
