"""Lies: plugins, and helpers of the host, that say what is not so; each is told apart from the truth by one word.

lie        `Lie` and what is made of it
kernels    backends in this process whose manifest or kernel lies, run through the suite's own items
packages   installed packages that lie, seen by a fresh interpreter
states_and_writes    wrong `merge_states` and `append_kv`
"""
