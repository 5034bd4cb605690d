"""How long each method of the evidence on text takes, in one interleaved run on a quiet machine.

Run: python benchmarks/text/latency.py     (minutes on 2 cores)
Writes results/text/latency.json.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from evidence.timing import measure
from text.run import planned
from text.table import TRUNKS

if __name__ == "__main__":
    words(__doc__)
    measure(planned()[0], ["transformers"], TRUNKS)
