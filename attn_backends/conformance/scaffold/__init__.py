"""`attn-backends new`: a third-party backend as a whole project that works from the first minute. No torch here."""
