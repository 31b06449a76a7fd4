"""A paged KV cache: its pages, the sequences that share them, and the tensors behind.

pool.py       which pages are free, and who holds the others      (no torch)
sequences.py  which pages a sequence has, and where its next token goes      (no torch)
descales.py   one descale per layer, given or computed on write
moving.py     `copy_pages`, `gather_kv`
fused_gather.py  `gather_kv` on a GPU, in one launch
cache.py      `PagedKVCache`: all of it over tensors

Public names come from `attn_backends`; nothing below the host side may import this.
"""
