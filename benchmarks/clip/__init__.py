"""Evidence on zero-shot classification: two towers, pruned and fused without training."""
