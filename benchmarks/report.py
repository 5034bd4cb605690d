"""How large a report is and how fast it opens: a run with 10 unknown sets, and the two smoke runs where they are kept.

Run: python benchmarks/report.py     (two minutes on 2 cores; needs chromium, or its path in CHROMIUM)
Writes results/report.json.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from html import unescape
from pathlib import Path
from statistics import median
from typing import Any

from command_line import words
from constructed_runs import constructed_run
from hydra_ensembles.report import write_report
from provenance import RESULTS, provenance, write_results
from real_text import KEPT

OPENED, WIDTHS = 5, {"phone": 360, "desktop": 1280}
ROOT = Path(__file__).parent.parent
SMOKE = ("text-smoke", "vision-smoke")
MADE = "10 unknown sets, 3 models"
# The page inside a frame of the width asked for: a window cannot be as narrow as a phone. Asking for the width of what
# can be scrolled makes the browser lay out everything.
_FRAME = """<!doctype html><body style="margin:0"><script>
const frame = document.createElement("iframe"), started = performance.now();
frame.style = "border:0;width:{width}px;height:900px";
frame.onload = () => {{
  const page = frame.contentDocument.documentElement, wide = page.scrollWidth;
  const found = {{ms: performance.now() - started, wide: wide, room: page.clientWidth}};
  document.body.append(Object.assign(document.createElement("pre"), {{textContent: JSON.stringify(found)}}));
}};
frame.src = "{page}";
document.body.append(frame);
</script></body>"""


def measured(runs: list[Path], out: Path) -> dict[str, Any]:
    """Seconds to write, bytes, milliseconds until all is loaded and laid out; is the page wider than its window?"""
    started = time.monotonic()
    report = write_report(runs, out)
    seconds = time.monotonic() - started
    page = report.page
    opened = {where: [_opened(page, width) for _ in range(OPENED)] for where, width in WIDTHS.items()}
    return {
        "write_s": round(seconds, 1),
        "figures": len({path.stem for path in report.figures}),
        "bytes": page.stat().st_size,
        "open_ms": {where: round(median(one["ms"] for one in found), 1) for where, found in opened.items()},
        "overflows": {where: any(one["wide"] > one["room"] for one in found) for where, found in opened.items()},
    }


def _opened(page: Path, width: int) -> dict[str, float]:
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no chromium found; install it, or name it in CHROMIUM")
    with tempfile.TemporaryDirectory() as scratch:
        frame = Path(scratch) / "frame.html"
        frame.write_text(_FRAME.format(width=width, page=page.resolve().as_uri()))
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
        command = [browser, *options, f"--user-data-dir={scratch}/profile", "--dump-dom", frame.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    said = re.search(r"<pre>(.*?)</pre>", dom)
    assert said is not None, dom
    found: dict[str, float] = json.loads(unescape(said[1]))
    return found


def as_markdown() -> str:
    """The table of docs/report.md."""
    results = json.loads((RESULTS / "report.json").read_text())
    lines = ["| | figures | written in | size | opens at 1280 px | at 360 px |", "|---|--:|--:|--:|--:|--:|"]
    for name, found in results["pages"].items():
        cells = [name, str(found["figures"]), f"{found['write_s']:.0f} s", f"{found['bytes'] / 1e6:.2f} MB"]
        cells += [f"{found['open_ms'][where]:.0f} ms" for where in ("desktop", "phone")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    os.chdir(ROOT)  # where recipes look for the data
    pages: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        made = constructed_run(Path(scratch) / "made", unknown=10, rows=1000, kind="image", resamples=1000)
        pages[MADE] = measured([made], Path(scratch) / "report")
        kept = [name for name in SMOKE if (KEPT / name / "results.json").is_file()]
        for name in kept:
            pages[f"`{name}`"] = measured([KEPT / name], Path(scratch) / name)
        if len(kept) > 1:
            pages["both side by side"] = measured([KEPT / name for name in kept], Path(scratch) / "both")
    how = provenance(packages=["matplotlib", "jinja2"], opened=OPENED, widths=WIDTHS)
    write_results("report", {"pages": pages, "provenance": how})
    print(as_markdown())


if __name__ == "__main__":
    words(__doc__)
    main()
