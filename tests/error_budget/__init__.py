"""What quantising costs: formats, the rotation, the estimate, the command."""
