"""How long each method of the evidence on images takes, in one interleaved run on a quiet machine.

Run: python benchmarks/vision/latency.py     (a minute on 2 cores, when run.py is done)
Writes results/vision/latency.json.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence.timing import measure
from vision.run import planned

if __name__ == "__main__":
    measure(planned()[0], ["timm"])
