"""For the site: what pages take from the rest of the repository, which the site does not have.

Links that leave docs/ become text with the path behind it. `<!-- include ../PATH.md -->` becomes that file, one heading
lower, its pictures inside the page.
"""

import base64
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<path>(?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")
_INCLUDE = re.compile(r"<!-- include (?P<path>\S+) -->")
_PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<path>[^)]+\.png)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page as the site shows it."""
    here = Path(page.file.abs_src_path).parent
    text = _INCLUDE.sub(lambda found: _included((here / found["path"]).resolve(), here), markdown)
    root = Path(config["docs_dir"]).resolve().parent

    def named(found: re.Match[str]) -> str:
        path = (here / found["path"]).resolve()
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {found['path']}, which is not there")
        name = path.relative_to(root).as_posix()
        return found["text"] if path.name in found["text"] else f"{found['text']} (`{name}`)"

    return _LINK.sub(named, text)


def _included(path: Path, here: Path) -> str:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^# .*\n", "", text)
    text = re.sub(r"^(#+) ", r"\1# ", text, flags=re.MULTILINE)
    # Links of the file are relative to where it lies; those into docs are links of the site.
    docs = here.name
    text = re.sub(rf"\]\((?:\.\./)+{docs}/", "](", text)
    return _PICTURE.sub(lambda found: f"![{found['text']}]({_data(path.parent / found['path'])})", text)


def _data(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
