"""How long each method of the evidence on images takes, in one interleaved run on a quiet machine.

Run: python benchmarks/vision/latency.py     (a minute on 2 cores, when run.py is done)
Writes results/vision/latency.json.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence.timing import timed
from provenance import provenance, write_results
from vision.run import planned

BATCH, ROUNDS, THREADS = 4, 20, 2


def main() -> None:
    torch.set_num_threads(THREADS)
    networks, _ = planned()
    found = timed(networks, BATCH, ROUNDS)
    write_results("vision/latency", {**found, "provenance": provenance(packages=["timm"])})


if __name__ == "__main__":
    main()
