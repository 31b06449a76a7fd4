"""What quantising q, K and V costs in accuracy, estimated on given tensors before anybody pays for it.

options.py      the ways to quantise, as data
formats.py      numbers through a format and back, by granularity
hadamard.py     the rotation that spreads outliers over a head
estimate.py     `quantization_error`: every option against float64, on a sample of the rows
budget.py       what it returns
"""
