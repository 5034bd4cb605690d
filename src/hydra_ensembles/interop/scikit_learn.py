"""A hydra as a scikit-learn classifier: `predict_proba` for its metrics, calibration and model inspection."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hydra_ensembles.data.batches import inputs_to
from hydra_ensembles.data.preparing import prepare
from hydra_ensembles.errors import HydraError
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.optional import import_extra

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, ClassifierMixin
else:
    _base = import_extra("sklearn.base", "sklearn", "a scikit-learn classifier")
    BaseEstimator, ClassifierMixin = _base.BaseEstimator, _base.ClassifierMixin


class HydraClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """`predict_proba(X)` `(rows, classes)` of a hydra that is trained already; `fit` only looks at the labels.

    X: texts; images as paths, bytes, Pillow images or pixels of uint8; or a float tensor or array that is prepared
    already. A temperature that was fitted is part of the probabilities.
    """

    def __init__(self, hydra: Hydra | None = None, batch_size: int = 64):
        self.hydra, self.batch_size = hydra, batch_size

    def __sklearn_is_fitted__(self) -> bool:
        return self.hydra is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.no_validation = True
        return tags

    @property
    def classes_(self) -> np.ndarray:
        """Class names where the hydra has them, else numbers; sorted, as scikit-learn's metrics take columns to be."""
        return np.sort(self._names())

    def fit(self, X: Any, y: Any = None) -> "HydraClassifier":
        """Nothing is trained; labels that the hydra does not know are refused."""
        known = set(self.classes_.tolist())
        strange = None if y is None else next((one for one in np.unique(y).tolist() if one not in known), None)
        if strange is not None:
            raise HydraError(f"label {strange!r} is not one of the hydra's {len(known)} classes")
        return self

    @torch.no_grad()
    def predict_proba(self, X: Any) -> np.ndarray:
        hydra = self._hydra()
        device = next(hydra.parameters()).device
        parts = []
        for start in range(0, len(X), self.batch_size):
            rows = X[start : start + self.batch_size]
            rows = rows.numpy(force=True) if isinstance(rows, Tensor) else rows
            is_prepared = isinstance(rows, np.ndarray) and rows.dtype.kind == "f"
            inputs = torch.from_numpy(np.ascontiguousarray(rows)).float() if is_prepared else prepare(hydra, rows)
            parts.append(hydra(inputs_to(inputs, device)).double().softmax(dim=-1).cpu().numpy())
        if not parts:
            return np.empty((0, len(self.classes_)))
        return np.concatenate(parts)[:, np.argsort(self._names())]

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]  # type: ignore[no-any-return]

    def _names(self) -> np.ndarray:
        """In the hydra's own order."""
        hydra = self._hydra()
        return np.arange(hydra.num_classes or 0) if hydra.classes is None else np.asarray(hydra.classes)

    def _hydra(self) -> Hydra:
        if self.hydra is None:
            raise HydraError("HydraClassifier has no hydra; give it one: HydraClassifier(Hydra.load(directory))")
        return self.hydra
