"""Evaluation: for now, latency."""

from hydra_ensembles.evaluation.latency import Contest, Timing, contest, interleaved, sample_inputs

__all__ = ["Contest", "Timing", "contest", "interleaved", "sample_inputs"]
