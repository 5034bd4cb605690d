"""Numbers and names as a person says them."""

import re
from collections.abc import Iterable, Sequence


def percent(share: float, digits: int = 1) -> str:
    """A share in percent.

    >>> percent(0.7592)
    '75.9 %'
    """
    return f"{100 * share:.{digits}f} %"


def of_100(share: float) -> str:
    """A share as a count of a hundred; only all is 100 and only none is 0.

    >>> of_100(0.597), of_100(0.9999), of_100(0.0), of_100(0.001)
    ('60', 'over 99', '0', 'fewer than 1')
    """
    if 0 < share <= 0.005:  # Python rounds a half to even, which is 0
        return "fewer than 1"
    return "over 99" if 0.995 <= share < 1 else f"{100 * share:.0f}"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign.

    >>> signed(-0.456), signed(0.04)
    ('−0.5', '0.0')
    """
    shown = f"{value:+z.{digits}f}"
    return shown.lstrip("+").replace("-", "−") if float(shown) == 0 else shown.replace("-", "−")


def listed(parts: Iterable[str], last: str = "and") -> str:
    """Words in a row.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    found = list(parts)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} {last} {found[-1]}" if found else ""


def times(ratio: float) -> str:
    """How many times as much.

    >>> times(2.846), times(1.004)
    ('2.8 times', '1.0 times')
    """
    return f"{ratio:.1f} times"


def short(number: float) -> str:
    """A large number in few digits.

    >>> short(22_713_216), short(17_563_828_224), short(999_700), short(950)
    ('22.7 M', '17.6 G', '1 M', '950')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # what would be rounded up to it
            return f"{number / size:.3g} {letter}"
    return f"{number:g}"


def milliseconds(value: float) -> str:
    """A time in few digits.

    >>> milliseconds(4.5678), milliseconds(1234.5)
    ('4.57 ms', '1,234 ms')
    """
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


def many(number: int, one: str, more: str | None = None) -> str:
    """A count with its noun.

    >>> many(1, "row"), many(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def each(parts: Sequence[tuple[str, str]]) -> str:
    """Names with their values.

    >>> each([("base", "76.4 %"), ("hydra", "75.9 %")])
    'base 76.4 %, hydra 75.9 %'
    """
    return ", ".join(f"{name} {value}" for name, value in parts)


def model_name(reference: str) -> str:
    """A model's reference without a path of the machine that it lay on, of which only the end is of use to others.

    >>> model_name("hf:models/my-bert/"), model_name("hf:pkg:minilm/model"), model_name("${M:-/home/me/vit}")
    ('hf:my-bert', 'hf:pkg:minilm/model', 'vit')
    """
    if reference.startswith("hf:pkg:"):  # a package is the same everywhere
        return reference
    found = re.fullmatch(r"(timm|torchvision|open_clip|hf):([^$]*)", reference)
    scheme, path = (f"{found[1]}:", found[2]) if found else ("", reference)
    return scheme + path.replace("\\", "/").rstrip("/}").split("/")[-1]


def slug(text: str) -> str:
    """A name that files and ids can have.

    >>> slug("text-smoke, seed 1: hydra"), slug("b.c")
    ('text-smoke-seed-1-hydra', 'b.c')
    """
    return "-".join("".join(sign if sign.isalnum() or sign in "_." else " " for sign in text.lower()).split())
