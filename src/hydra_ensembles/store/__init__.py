"""The on-disk format: a directory with model.safetensors and config.json. Hashes. Knows no class of ours."""

from hydra_ensembles.store.directory import (
    CONFIG,
    FORMAT_VERSION,
    TENSORS,
    StoreError,
    check_may_write,
    check_store,
    check_tensors,
    check_whole,
    read_config,
    read_store,
    read_tensors,
    write_model,
    write_store,
)
from hydra_ensembles.store.hashing import json_digest, tensors_digest
from hydra_ensembles.store.whole import draft_of, whole

__all__ = [
    "CONFIG",
    "FORMAT_VERSION",
    "TENSORS",
    "StoreError",
    "check_may_write",
    "check_store",
    "check_tensors",
    "check_whole",
    "draft_of",
    "json_digest",
    "read_config",
    "read_store",
    "read_tensors",
    "tensors_digest",
    "whole",
    "write_model",
    "write_store",
]
