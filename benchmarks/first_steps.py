"""Get started as a new user does it: an empty environment, the wheel, every command of the page, each with its time.

Run: python benchmarks/first_steps.py     (five minutes; downloads packages)
Writes results/first_steps.json, of which docs/get-started.md has a sentence.

Two things differ from the page: torch is installed first, in the build for CPUs, which CI pins, with the file that lets
torchvision's other build stand beside it; and `hydra-ensembles` in pip's lines is the wheel of this checkout.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from command_line import words
from provenance import NOT_YET, RESULTS, provenance, write_results

ROOT = Path(__file__).parent.parent
CI = ROOT / ".ci"
HOOK = "torchvision_beside_cpu_torch"
ASKED = {
    "first prediction": "python ask.py",
    "first report": "hydra-ens report runs/digits",
}
"""What a new user waits for, and the command after which it is there."""


def commands_of(page: str) -> list[str]:
    """The lines of the page's `bash` blocks, in its order."""
    blocks: list[str] = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def files_of(page: str) -> dict[str, str]:
    """The files that the page names."""
    return dict(re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', page, flags=re.DOTALL))


def from_wheel(command: str, wheel: Path) -> str:
    """A line of pip with the wheel in the place of the name.

    >>> from_wheel("pip install 'hydra-ensembles[vision,data]'", Path("/w/h.whl"))
    "pip install '/w/h.whl[vision,data]'"
    """
    return command.replace("hydra-ensembles[", f"{wheel}[")


def as_markdown() -> str:
    """How long a new user waits, for the page itself."""
    path = RESULTS / "first_steps.json"
    if not path.is_file():
        return NOT_YET
    found = json.loads(path.read_text())
    installing = sum(seconds for command, seconds in found["seconds"].items() if command.startswith("pip "))
    report, all_steps = found["seconds_to"]["first report"], sum(found["seconds"].values())
    return (
        f"From an empty environment to the first report took {report / 60:.1f} minutes on two cores, everything below "
        f"{all_steps / 60:.1f}, pip {installing / 60:.1f} of them with packages close at hand "
        "(`python benchmarks/first_steps.py`)."
    )


def main() -> None:
    page = (ROOT / "docs" / "get-started.md").read_text()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, ROOT], check=True)
        (wheel,) = place.glob("*.whl")
        subprocess.run(["python3", "-m", "venv", place / "venv"], check=True)
        environment = {**os.environ, "PATH": f"{place}/venv/bin{os.pathsep}{os.environ['PATH']}"}
        environment["PIP_CONSTRAINT"] = str(CI / "constraints.txt")
        work = place / "work"
        work.mkdir()
        for title, content in files_of(page).items():
            (work / title).write_text(content)
        steps: dict[str, float] = {}
        for command in ["pip install torch", *commands_of(page)]:
            started = time.monotonic()
            done = subprocess.run(
                shlex.split(from_wheel(command, wheel)), cwd=work, env=environment, capture_output=True, text=True
            )
            steps[command] = round(time.monotonic() - started, 1)
            print(f"{steps[command]:7.1f} s  {command}", flush=True)
            if done.returncode:
                raise SystemExit(f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
            if command == "pip install torch":
                (site,) = (place / "venv" / "lib").glob("python*/site-packages")
                shutil.copy(CI / f"{HOOK}.py", site)
                (site / f"{HOOK}.pth").write_text(f"import {HOOK}\n")
    since = dict(zip(steps, accumulate(steps.values()), strict=True))
    waited = {what: round(since[command], 1) for what, command in ASKED.items()}
    write_results("first_steps", {"seconds": steps, "seconds_to": waited, "provenance": provenance()})


if __name__ == "__main__":
    words(__doc__)
    main()
