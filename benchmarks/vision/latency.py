"""How long each method of the evidence on images takes, in one interleaved run on a quiet machine.

Run: python benchmarks/vision/latency.py     (minutes on 2 cores)
Writes results/vision/latency.json.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence.choosing import CHOSEN, chosen_maker
from evidence.methods import Row
from evidence.networks import Networks
from evidence.timing import measure
from vision.run import IN_TABLE, STRONGER, VARIANTS, planned


def chosen(networks: Networks) -> list[Row]:
    """The variant that was chosen, once one is."""
    make = chosen_maker(networks, (*IN_TABLE, *VARIANTS))
    return [] if make is None else [replace(make(networks, 0), method=CHOSEN)]


if __name__ == "__main__":
    networks = planned()[0]
    measure(networks, ["timm"], STRONGER, chosen(networks))
