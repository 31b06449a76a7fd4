"""torch's plain attention, on any device."""
