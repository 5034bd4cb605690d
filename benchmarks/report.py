"""How large a report is and how fast it opens: a run with 10 unknown sets, and the two smoke runs where they are kept.

Run: python benchmarks/report.py     (a minute on 2 cores; needs chromium, or its path in CHROMIUM)
Writes results/report.json.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from statistics import median
from typing import Any

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


def measured(page: Path) -> dict[str, Any]:
    """Bytes, milliseconds until the page is loaded and laid out, and whether it is wider than its window."""
    opened = {where: [_opened(page, width) for _ in range(OPENED)] for where, width in WIDTHS.items()}
    return {
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
    lines = ["| | size | opens at 1280 px | at 360 px |", "|---|--:|--:|--:|"]
    for name, found in results["pages"].items():
        opens = found["open_ms"]
        lines.append(
            f"| {name} | {found['bytes'] / 1e6:.2f} MB | {opens['desktop']:.0f} ms | {opens['phone']:.0f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    os.chdir(ROOT)  # where recipes look for the data
    pages: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        made = constructed_run(Path(scratch) / "made", unknown=10, rows=1000, kind="image", resamples=1000)
        pages[MADE] = measured(write_report([made], Path(scratch) / "report").page)
        kept = [name for name in SMOKE if (KEPT / name / "results.json").is_file()]
        for name in kept:
            pages[f"`{name}`"] = measured(write_report([KEPT / name], Path(scratch) / name).page)
        if len(kept) > 1:
            both = write_report([KEPT / name for name in kept], Path(scratch) / "both")
            pages["both side by side"] = measured(both.page)
    how = provenance(packages=["matplotlib", "jinja2"], opened=OPENED, widths=WIDTHS)
    write_results("report", {"pages": pages, "provenance": how})
    print(as_markdown())


if __name__ == "__main__":
    main()
