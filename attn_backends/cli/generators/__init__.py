"""What the generated files say, one module per file, each with `render() -> str`. Deterministic; nothing is written here."""
