"""The on-disk format: a directory with model.safetensors and config.json. Knows no class of ours."""

from hydra_ensembles.store.directory import (
    FORMAT_VERSION,
    StoreError,
    check_store,
    check_tensors,
    read_config,
    read_store,
    read_tensors,
    write_store,
)

__all__ = [
    "FORMAT_VERSION",
    "StoreError",
    "check_store",
    "check_tensors",
    "read_config",
    "read_store",
    "read_tensors",
    "write_store",
]
