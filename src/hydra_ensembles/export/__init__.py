"""Export: a hydra as one file that other runtimes read, with what its inputs and outputs mean beside it."""

from hydra_ensembles.export.graph import ExportError, Graph
from hydra_ensembles.export.int8 import to_int8
from hydra_ensembles.export.writing import FORMATS, export

__all__ = ["FORMATS", "ExportError", "Graph", "export", "to_int8"]
