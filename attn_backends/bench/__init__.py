"""The benchmark: every installed backend on the same inputs, checked before it is timed, beside the roofline.

Light, no torch (reading, comparing and drawing results works anywhere):
    cell.py        one shape of a suite, and the request that it makes
    suites.py      the suites, out of suites.toml
    results.py     the results file: schema attn.bench/1, reading, writing, what a second run may continue
    summary.py     medians and spreads
    compare.py     two results files: ratios, and which of them are beyond the spread
    peers.py       recorded figures of other kernels: a peer that is slower here voids the run
    model_error.py the cost model against measurements; shares.py says which shares these tell
    figures.py     the figures that are shown of an outcome
    page.py        one HTML page with its plots (plot.py)

With torch:
    inputs.py      random tensors of a cell
    reference.py   what is right, on slices, in float64
    contender.py   a backend bound to a cell's inputs
    clock.py       device time and host time of a call, with a cold L2 cache
    rounds.py      interleaved repeats
    cell_run.py    one cell: check, then time
    suite_run.py   all cells of a suite, one after the other, saved after each
    overhead.py    the suite of host times; machinery.py, host_time.py
    versions.py    what the figures depend on
"""
