"""Data: readers, transforms, batches."""

from hydra_ensembles.data.batches import Batch, Batches, Data, DataError, TensorBatches, as_batches
from hydra_ensembles.data.images import ImageBatches, ImageTransform
from hydra_ensembles.data.loading import batches_for, load_data, preprocess_of
from hydra_ensembles.data.opening import open_data
from hydra_ensembles.data.preparing import prepare
from hydra_ensembles.data.rows import Row, Rows
from hydra_ensembles.data.texts import TextBatches, Tokenizer

__all__ = [
    "Batch",
    "Batches",
    "Data",
    "DataError",
    "ImageBatches",
    "ImageTransform",
    "Row",
    "Rows",
    "TensorBatches",
    "TextBatches",
    "Tokenizer",
    "as_batches",
    "batches_for",
    "load_data",
    "open_data",
    "prepare",
    "preprocess_of",
]
