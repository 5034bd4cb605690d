"""The table on the first screen of README, from results files.

Run: python benchmarks/front_page.py     (seconds; after benchmarks/text/table.py)
Writes the table in README.md.
"""

import json
from pathlib import Path
from typing import Any

from command_line import words
from provenance import NOT_YET, RESULTS

README = Path(__file__).parent.parent / "README.md"
ROWS = {
    "single": "one network",
    "DE(D)": "Deep Ensembles, three networks",
    "DE(D)+": "the same, trained as long as the hydra",
    "hydra (circuit)": "**hydra, three members**",
    "hydra (circuit), trunk of 4": "**the same, 4 of its 6 blocks shared**",
}
START, END = "<!-- front -->\n", "\n<!-- /front -->"


def as_markdown() -> str:
    """The table; with times where they have been measured."""
    path = RESULTS / "text" / "summary.json"
    if not path.is_file():
        return NOT_YET
    methods = json.loads(path.read_text())["methods"]
    is_timed = all("latency_ratio" in methods[method] for method in ROWS)
    columns = ["accuracy %", "ECE", "OOD AUROC %", *(["time"] if is_timed else []), "multiply-adds", "parameters"]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    single = methods["single"]["mult_adds"]["mean"]
    for method, name in ROWS.items():
        found = methods[method]
        cells = [
            _mean(found, "accuracy", ".1f"),
            _mean(found, "ece", ".3f"),
            _mean(found, "auroc", ".1f"),
            *([f"{found['latency_ratio']['mean']:.2f} x"] if is_timed else []),
            f"{found['mult_adds']['mean'] / single:.2f} x",
            f"{found['params']['mean'] / 1e6:.1f} M",
        ]
        seeds = found["accuracy"]["seeds"]
        lines.append(f"| {name}{'' if seeds == 3 else f' ({seeds} seeds)'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(found: dict[str, Any], metric: str, form: str) -> str:
    of = found[metric]
    spread = "" if of["std"] is None else f" ± {of['std']:{form}}"
    return f"{of['mean']:{form}}{spread}"


def main() -> None:
    text = README.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    assert after, f"{README} has no place for the table"
    README.write_text(f"{before}{START}{as_markdown()}{END}{after}")


if __name__ == "__main__":
    words(__doc__)
    main()
