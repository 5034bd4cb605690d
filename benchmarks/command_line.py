"""The command line of a script that takes a few words at most."""

import argparse
from collections.abc import Collection


def words(about: str, most: int = 0, known: Collection[str] = ()) -> list[str]:
    """What stands after the script's name; `--help` shows `about`, the script's docstring, and starts nothing."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if most:
        parser.add_argument("words", nargs="*", metavar="WORD", help="as in the line above")
    given: list[str] = vars(parser.parse_args()).get("words", [])
    if len(given) > most:
        parser.error(f"at most {most} words, not {len(given)}: {' '.join(given)}")
    for word in given:
        if known and word not in known:
            parser.error(f"'{word}' is not known; known: {', '.join(known)}")
    return given
