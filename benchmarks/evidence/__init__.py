"""What the evidence benchmarks share: units of work, trained networks, methods, results, tables."""
