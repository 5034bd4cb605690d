"""What is fitted on known data after training: a few numbers, stored with the model as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hydra_ensembles.uncertainty.conformal import ConformalQuantile
from hydra_ensembles.uncertainty.decisions import OODThreshold
from hydra_ensembles.uncertainty.known_rows import FittingError
from hydra_ensembles.uncertainty.temperature import Temperature


@dataclass(frozen=True)
class Fitted:
    """A temperature first, then threshold and quantile on scores at that temperature; None where not fitted."""

    temperature: Temperature | None = None
    ood: OODThreshold | None = None
    conformal: ConformalQuantile | None = None

    def to_json(self) -> dict[str, Any]:
        """The parts that are fitted."""
        return {name: part for name, part in asdict(self).items() if part is not None}

    @classmethod
    def from_json(cls, data: Any) -> "Fitted":
        """What `to_json` gave; anything else is refused."""
        if not isinstance(data, Mapping):
            raise FittingError(f"what is fitted is an object with {', '.join(_KINDS)}, found {data!r:.60}")
        strange = next((name for name in data if name not in _KINDS), None)
        if strange is not None:
            raise FittingError(f"{strange!r} is not something that is fitted; known: {', '.join(_KINDS)}")
        return cls(**{name: _read(name, fields) for name, fields in data.items()})


def _read(name: str, fields: Any) -> Any:
    try:
        return _KINDS[name](**fields)
    except TypeError as error:
        raise FittingError(f"the fitted '{name}' is {fields!r:.60}, which cannot be read: {error}") from None


_KINDS: dict[str, Any] = {"temperature": Temperature, "ood": OODThreshold, "conformal": ConformalQuantile}
