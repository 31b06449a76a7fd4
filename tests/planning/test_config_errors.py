"""Configs that cannot be read: which key, what was looked for, what is near; never an untyped exception."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from attn_backends.errors import AttnBackendsError
from attn_backends.planning import ConfigError, layer_kinds, load_config, requests, shipped

BASE = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6, "vocab_size": 1000}


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers"])
def test_a_missing_key_is_named(key: str) -> None:
    """The error names the key and every word that was looked for."""
    with pytest.raises(ConfigError, match=f"missing key {key} .looked for .*{key}, ") as caught:
        layer_kinds({name: value for name, value in BASE.items() if name != key})
    assert caught.value.missing == (key,)


def test_all_missing_keys_are_named_at_once() -> None:
    """One error for the whole config."""
    with pytest.raises(ConfigError) as caught:
        layer_kinds({})
    assert caught.value.missing == ("num_attention_heads", "num_hidden_layers", "hidden_size")


def test_the_nearest_key_is_named() -> None:
    """A typing error is recognised; a model's name is never offered."""
    config = {**BASE, "num_atention_heads": 8, "model_type": "num_attention_head"}
    del config["num_attention_heads"]
    with pytest.raises(ConfigError, match="nearest key present: num_atention_heads"):
        layer_kinds(config)


@pytest.mark.parametrize("key", ["num_key_value_heads", "num_cross_attention_heads", "num_attention_groups"])
def test_a_key_of_another_meaning_is_not_offered(key: str) -> None:
    """Only what looks like a misspelling is."""
    config = {name: value for name, value in BASE.items() if name != "num_attention_heads"}
    with pytest.raises(ConfigError) as caught:
        layer_kinds({**config, key: 8})
    assert "nearest key" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "said", "hint"),
    [
        ("config", "models/a.json: missing key heads", "add heads to a.json"),
        ("config.text_config", "models/a.json: text_config: missing key heads", "add heads to a.json, in text_config"),
    ],
    ids=["root", "nested"],
)
def test_an_error_can_be_of_a_file(where: str, said: str, hint: str) -> None:
    """It names the file, the part of it, and what to add there."""
    error = ConfigError("missing key heads", where=where, missing=("heads",)).in_file("models/a.json")
    assert (str(error), error.hint, error.missing) == (said, hint, ("heads",))


def test_the_place_is_named() -> None:
    """A nested config that leaves its heads to the code is an error of that part."""
    with pytest.raises(ConfigError, match=r"config\.text_config: missing key num_attention_heads"):
        layer_kinds({"text_config": {"hidden_size": 8}, "vision_config": BASE})


@pytest.mark.parametrize("key", ["qk_rope_head_dim", "v_head_dim", "qk_nope_head_dim"])
def test_half_of_a_compressed_cache_is_an_error(key: str) -> None:
    """MLA needs all of its widths."""
    widths = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    with pytest.raises(ConfigError) as caught:
        layer_kinds({**BASE, **{name: value for name, value in widths.items() if name != key}})
    assert caught.value.missing == (key,)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_attention_heads": -8}, "num_attention_heads: got -8; want a whole number >= 1"),
        ({"num_attention_heads": 0}, "num_attention_heads: got 0"),
        ({"num_attention_heads": True}, "num_attention_heads: got True"),
        ({"num_attention_heads": "8"}, "num_attention_heads: got '8'"),
        ({"num_attention_heads": [4, 8]}, r"num_attention_heads: got \[4, 8\]"),
        ({"num_attention_heads": 7}, "width 512 does not divide among 7 heads; missing key head_dim"),
        ({"num_key_value_heads": 3}, "8 query heads do not divide among 3 KV heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: got 1000000000; want at most"),
        ({"head_dim": 2.5}, "head_dim: got 2.5"),
        ({"sliding_window": -5}, "sliding_window: got -5"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping: got -1.0"),
        ({"attn_logit_softcapping": float("nan")}, "attn_logit_softcapping: got nan"),
        ({"attention_dropout": 1.5}, "attention_dropout: got 1.5"),
        ({"torch_dtype": "float31"}, "torch_dtype: got 'float31'; want one of float16"),
        ({"layer_types": ["full_attention"]}, "layer_types: 1 entries for 6 layers"),
        ({"layer_types": ["telepathy"] * 6}, "layer_types: got 'telepathy'; want a word that contains one of"),
        ({"layer_types": ["sliding_attention"] * 6}, "missing key sliding_window"),
        ({"layer_types": ["chunked_attention"] * 6}, "missing key attention_chunk_size"),
        ({"cross_attention_layers": [9]}, "layer numbers from 0 to 5"),
        ({"attention_sinks": 4}, "attention_sinks: got 4; want true or false"),
        ({"alibi": "yes"}, "alibi: got 'yes'; want true or false"),
        ({"query_pre_attn_scalar": 0}, "want a number > 0"),
        ({"layer_types": ["linear_attention"] * 6}, "no layer has softmax attention"),
    ],
)
def test_an_illegal_value_is_named(keys: dict[str, Any], words: str) -> None:
    """Key, value, what would be legal."""
    with pytest.raises(ConfigError, match=words):
        layer_kinds({**BASE, **keys})


@pytest.mark.parametrize("value", [[], None, 3, "text", {1: 2}])
def test_a_config_is_an_object(value: Any) -> None:
    """Anything else is a typed error."""
    with pytest.raises(ConfigError, match="a config is an object"):
        layer_kinds(value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not json", "not JSON, line 1"),
        (b'{"a": 1,\n', "not JSON, line 2"),
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[1]", "a config is a JSON object; got list"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
    ids=["words", "cut", "empty", "bytes", "list", "deep", "digits"],
)
def test_a_file_that_is_no_config(tmp_path: Path, content: bytes, words: str) -> None:
    """The error names the file and the line."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_file_a_folder_and_a_name(tmp_path: Path) -> None:
    """All three ways give the same config, a byte order mark included."""
    config = load_config("GPT2")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8-sig")
    assert load_config(tmp_path) == load_config(str(tmp_path / "config.json")) == config


def test_a_name_that_is_like_none_lists_none() -> None:
    """The hint says where all of them are; the message does not repeat them."""
    with pytest.raises(ConfigError, match=r"no shipped config of that name$") as caught:
        load_config("zzzzz")
    assert "--shipped" in str(caught.value.hint)


def test_an_unknown_name_lists_the_nearest() -> None:
    """A mistyped name of a shipped config."""
    with pytest.raises(ConfigError, match=r"nearest shipped: llama-3\.1-8b"):
        load_config("lama-3.1-8b")


@pytest.mark.parametrize("name", ["", "\0", "no/such/folder", "x" * 5000])
def test_a_path_that_is_none(name: str) -> None:
    """Names that the file system itself refuses are typed errors too."""
    with pytest.raises(ConfigError):
        load_config(name)


def test_mutated_configs_give_answers_or_typed_errors() -> None:
    """Values of any kind in any place of any shipped config: kinds with legal requests, or a typed error."""
    random_ = random.Random(20)
    values = [None, True, -1, 0, 1, 3, 2.5, float("inf"), 10**30, "", "full", [], [1], [None, "x"], {}, {"a": 1}]
    answers = 0
    for _ in range(4000):
        config = load_config(random_.choice(shipped()))
        place = random_.choice([config, *[value for value in config.values() if isinstance(value, dict)]])
        key = random_.choice(list(place))
        place[key] = random_.choice(values)
        if random_.random() < 0.3:
            del place[random_.choice(list(place))]
        try:
            answers += all(requests(kind) for kind in layer_kinds(config))
        except AttnBackendsError:
            continue
    assert answers > 1000
