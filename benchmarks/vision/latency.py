"""How long each method of the evidence on images takes, in one interleaved run on a quiet machine.

Run: python benchmarks/vision/latency.py     (minutes on 2 cores)
Writes results/vision/latency.json.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from evidence.choosing import CIRCUIT, chosen_maker
from evidence.networks import Networks
from evidence.timing import measure
from vision.run import STRONGER, VARIANTS, planned


def chosen(networks: Networks) -> list[str]:
    """The variant that was chosen, once one is; what is in the table is timed with it."""
    make = chosen_maker(networks, VARIANTS)
    return [] if make is None else [make(networks, 0, CIRCUIT).method]


if __name__ == "__main__":
    words(__doc__)
    networks = planned()[0]
    measure(networks, ["timm"], [*STRONGER, *chosen(networks)])
