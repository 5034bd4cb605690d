"""Reading a recipe: YAML to checked settings; an error names the line and what is allowed there."""

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pydantic
import yaml

from hydra_ensembles.errors import HydraError
from hydra_ensembles.pipeline.recipe import RunRecipe


class RecipeError(HydraError):
    """A recipe that cannot be run."""


def read_recipe(path: str | Path) -> RunRecipe:
    """The recipe in a YAML file."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise RecipeError(f"{path} is a directory, as runs leave it; a recipe is a YAML file, see recipes/")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from None
    return parse_recipe(text, str(path))


def parse_recipe(text: str, where: str = "recipe") -> RunRecipe:
    """The recipe in a text."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_unique_keys(tree, where)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RecipeError(f"{where}{line}: not YAML: {problem}") from None
    except ValueError as error:  # a day that no month has
        raise RecipeError(f"{where}: not YAML: {error}") from None
    except (TypeError, RecursionError):
        raise RecipeError(f"{where}: a key that is no text, or a section inside itself; neither is a recipe") from None
    if not isinstance(content, dict):
        raise RecipeError(f"{where}: expected sections (name, backbone, data, members, ...), found {_shown(content)}")
    try:
        return RunRecipe.model_validate(content)
    except pydantic.ValidationError as error:
        first, *others = error.errors()
        more = f" (and {len(others)} more)" if others else ""
        raise RecipeError(f"{where}{_line(tree, first)}: {_told(first)}{more}") from None


def _told(error: Any) -> str:
    """What pydantic found, in our words."""
    place = [str(part) for part in error["loc"]]
    name, section = place[-1] if place else "", ".".join(place[:-1])
    inside = f"'{section}'" if section else "a recipe"
    kind, found = error["type"], error["input"]
    if kind == "missing":
        return f"{inside} must say '{name}'"
    if kind == "extra_forbidden":
        known = _known(place[:-1])
        close = difflib.get_close_matches(name, known, n=1)
        meant = f" (did you mean '{close[0]}'?)" if close else ""
        return f"{inside} has no '{name}'{meant}; it may say {', '.join(known)}"
    if kind == "literal_error":
        return f"{'.'.join(place)} is {_shown(found)}; allowed: {error['ctx']['expected']}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    told = error["msg"][0].lower() + error["msg"][1:]
    return f"{'.'.join(place)} is {_shown(found)}: {told}"


def _known(section: Sequence[str]) -> list[str]:
    """The keys that a section may have."""
    model: Any = RunRecipe
    for name in section:
        inner = [part for part in _classes(model.model_fields[name].annotation) if hasattr(part, "model_fields")]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def _classes(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _classes(inner)


def _line(tree: Any, error: Any) -> str:
    """Where to look: the line of the key, or of the first that is named where several do not fit together."""
    place = error["loc"]
    if not place:
        named = re.search(r"\b[a-z_]+\.[a-z_]+\b", _told(error))
        place = named[0].split(".") if named else ()
    return f" line {_line_of(tree, place)}" if place else ""


def _line_of(tree: Any, place: Sequence[int | str]) -> int:
    """The line where a key stands, or where the section stands that lacks it."""
    node, line = tree, tree.start_mark.line + 1
    for part in place:
        if isinstance(part, int) and isinstance(node.value, list) and part < len(node.value) and node.id == "sequence":
            node = node.value[part]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if node.id == "mapping" else []
        found = next(((key, value) for key, value in pairs if key.value == str(part)), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return int(line)


def _check_unique_keys(node: Any, where: str) -> None:
    """YAML lets the last of two equal keys win; here that is a mistake."""
    if node is None or node.id == "scalar":
        return
    if node.id == "sequence":
        for item in node.value:
            _check_unique_keys(item, where)
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        if key.value in seen:
            raise RecipeError(
                f"{where} line {key.start_mark.line + 1}: '{key.value}' stands here and in line {seen[key.value]}; "
                "keep one"
            )
        seen[key.value] = key.start_mark.line + 1
        _check_unique_keys(value, where)


def _shown(value: Any) -> str:
    return f"{value!r:.60}"
