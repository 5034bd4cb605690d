"""Evidence on text: MiniLM on SST-2 (the paper, 5.2)."""
