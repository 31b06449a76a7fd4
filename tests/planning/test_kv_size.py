"""Bytes of a KV cache, counted by hand for models whose layers keep all, a window, or one latent."""

from __future__ import annotations

import json

import pytest

from attn_backends import Device
from attn_backends.cli.main import cli
from attn_backends.errors import RequestError
from attn_backends.planning import layer_kinds, load_config
from attn_backends.planning.kv_size import kv_sizes

MIB = 2**20


def sizes(model, **given):
    return {size.store: size for size in kv_sizes(layer_kinds(load_config(model)), **given)}


def test_every_layer_keeps_all():
    """Llama 3.1 8B: 32 layers, 8 KV heads of 128."""
    found = sizes("llama-3.1-8b", context=8192)
    elements = 32 * 8 * (128 + 128)
    assert found["dense"].bytes_per_token == 2 * elements
    assert found["8 bits per tensor"].bytes_per_token == elements
    assert found["8 bits per token and head"].bytes_per_token == elements + 32 * 8 * 2 * 4
    assert found["V alone in 8 bits"].bytes_per_token == 32 * 8 * (128 * 2 + 128)
    assert found["dense"].bytes_per_sequence == 8192 * 2 * elements


def test_whole_pages_are_kept():
    short, full = (sizes("llama-3.1-8b", context=tokens)["dense"].bytes_per_sequence for tokens in (17, 32))
    assert short == full


def test_a_window_keeps_the_pages_that_it_spans():
    """gpt-oss 20B: 12 layers keep all, 12 a window of 128, which may begin inside a page."""
    found = sizes("gpt-oss-20b", context=32768)["dense"]
    layer = 8 * (64 + 64) * 2
    assert found.bytes_per_sequence == layer * 12 * (32768 + 128 + 16)


def test_a_latent_is_k_and_v_at_once():
    """DeepSeek V3: 61 layers of one latent of 512 + 64."""
    found = sizes("deepseek-v3", context=4096)
    assert found["dense"].bytes_per_token == 61 * 576 * 2
    assert found["8 bits per token and head"].bytes_per_token == 61 * (576 + 4)


def test_what_fits_and_how_long_a_step_takes():
    device = Device.pretend("h200", memory_bytes=20 * 1024 * MIB, memory_bandwidth=1e12)
    found = sizes("llama-3.1-8b", context=8192, weights=15 * 1024 * MIB, batch=4, device=device)["dense"]
    assert found.sequences == 5
    assert found.step_seconds == pytest.approx((15 + 4) * 1024 * MIB / 1e12)


def test_nothing_is_guessed_without_a_device():
    found = sizes("llama-3.1-8b")["dense"]
    assert (found.sequences, found.step_seconds) == (None, None)


@pytest.mark.parametrize("given", [{"context": 0}, {"page_size": 0}, {"batch": 0}], ids=str)
def test_sizes_below_one_are_refused(given):
    with pytest.raises(RequestError):
        sizes("llama-3.1-8b", **given)


def test_a_model_without_a_cache_is_refused():
    with pytest.raises(RequestError, match="no layer with a KV cache"):
        sizes("bert-base")


def test_the_command_says_it_in_words_and_in_json():
    from click.testing import CliRunner

    asked = ["kv-size", "llama-3.1-8b", "--device", "h200", "--context", "32768"]
    answer = CliRunner().invoke(cli, asked)
    assert answer.exit_code == 0, answer.output
    assert "4 GiB" in answer.output
    record = json.loads(CliRunner().invoke(cli, [*asked, "--json"]).output)
    assert record["stores"][0]["bytes_per_sequence"] == 4 * 1024 * MIB
    assert record["device"] == "H200"


@pytest.mark.parametrize(
    ("given", "assumed", "said", "unsaid"),
    [
        (
            (), {"context": 1024, "batch": 1, "weights_gib": 0.0},
            ["a step reads the cache once", "no weights are counted", "--weights GIB", "sequences of 1024 tokens (--context)", "a step of 1 sequence (--batch)"],
            [],
        ),
        (("--batch", "4", "--weights", "0.5"), {"context": 1024}, ["weights and cache", "sequences of 1024 tokens"], ["no weights", "--batch"]),
        (("--context", "512", "--batch", "4", "--weights", "0"), {}, ["weights and cache"], ["no weights", "assumed"]),
    ],
    ids=["nothing", "no context", "everything"],
)  # fmt: skip
def test_what_was_not_given_is_said(given, assumed, said, unsaid):
    """In the notes under the table and in JSON; GPT-2's longest sequence has 1024 tokens."""
    from click.testing import CliRunner

    asked = ["kv-size", "gpt2", "--device", "h200", *given]
    shown = CliRunner().invoke(cli, asked).output
    record = json.loads(CliRunner().invoke(cli, [*asked, "--json"]).output)
    assert [text for text in said if text not in shown] == []
    assert [text for text in unsaid if text in shown] == []
    assert record["assumed"] == assumed
    assert record["context"] == (512 if "--context" in given else 1024)
