"""What a call costs: a lower bound per device (the roofline) and a predicted time per backend.

    visible.py    which keys queries see: exact counts in closed form
    sequences.py  the sequences of a batch, as far as a request knows them
    extent.py     everything about a request's sizes that costs depend on, counted once
    operations.py floating-point operations and exponentials
    traffic.py    bytes moved: what every kernel must move, and what an algorithm or a conversion adds
    rates.py      what a device can do per second
    floor.py      the roofline: the time that no kernel can beat, and what bounds it
    load.py       what a kind of kernel would take at the peaks
    predict.py    the time that one backend is expected to take
    model.py      the cost model that selection ranks by

No torch. Everything is arithmetic on the request, a manifest and the facts of a device: it runs at every decision that
is made anew, and takes a few microseconds.
"""
