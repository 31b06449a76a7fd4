"""The command line `attn-backends`: one file per command. The top layer: it may use everything, nobody imports it.

Commands are imported when they run, and only `demo` and the child process of `doctor` import torch.
"""
