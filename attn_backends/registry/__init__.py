"""How backends are found, described and loaded. Knows nothing of ranking; imports no torch."""
