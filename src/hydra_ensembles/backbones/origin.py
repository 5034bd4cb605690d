"""Where a model comes from: what config.json must say so that a model of its shape can be built again."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Origin:
    """Library, architecture and settings of an unpruned model; what its inputs and classes are, where known."""

    library: str
    architecture: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    preprocess: dict[str, Any] | None = field(default=None, repr=False)  # may hold a tokeniser
    classes: list[str] | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of config.json that this object answers for."""
        return asdict(self)

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Origin":
        """Read the fields written by `to_json`; others are left alone."""
        return cls(
            config["library"],
            config["architecture"],
            config.get("kwargs") or {},
            config.get("preprocess"),
            config.get("classes"),
        )
