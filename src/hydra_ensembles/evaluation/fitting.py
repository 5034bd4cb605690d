"""Fitting after training, on known data: what makes a model able to say "I do not know".

In this order: a temperature, then an OOD threshold and a conformal quantile, which are numbers on scores at that
temperature. Fitted on a hydra they become part of it: `hydra.fitted`, saved with it, used by `hydra.predict`. Rows that
the model was trained on are not like those it will meet: keep some aside, and others again for what is to be promised.
"""

import warnings
from dataclasses import replace

from torch import Tensor

from hydra_ensembles.data import Data
from hydra_ensembles.errors import HydraWarning
from hydra_ensembles.evaluation.answers import Answers, Model, answers
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.uncertainty import (
    Fitted,
    FittingError,
    TemperatureFit,
    check_choice,
    check_promise,
    check_rows,
    finest,
    fit_conformal,
    fit_ood_threshold,
    fit_temperature,
    ood_scores,
    prediction_sets,
    tempered_log_probs,
)


class _Fitting:
    """A model, and what is fitted on it so far; a hydra keeps that itself."""

    def __init__(self, model: Model | None, fitted: Fitted | None = None):
        if isinstance(model, Hydra) and fitted is not None:
            raise FittingError("a hydra keeps what is fitted on it itself; set hydra.fitted instead of giving fitted=")
        self.model, self._fitted = model, fitted or Fitted()

    @property
    def fitted(self) -> Fitted:
        """Temperature, OOD threshold and conformal quantile, as far as they are fitted."""
        return self.model.fitted if isinstance(self.model, Hydra) else self._fitted

    @fitted.setter
    def fitted(self, fitted: Fitted) -> None:
        if isinstance(self.model, Hydra):
            self.model.fitted = fitted
        else:
            self._fitted = fitted

    def _logits(self, data: Data | Answers) -> Tensor:
        """Member logits `(R, M, C)`."""
        return self._answers(data).logits

    def _answers(self, data: Data | Answers, labels: bool = False) -> Answers:
        if isinstance(data, Answers):
            return data
        if self.model is None:
            raise FittingError("without a model only answers can be looked at: give Answers(logits, labels)")
        return answers(self.model, data, labels=labels, digest=False)

    def _labelled(self, data: Data | Answers) -> tuple[Tensor, Tensor]:
        """Member logits `(R, M, C)` and labels `(R,)`."""
        said = self._answers(data, labels=True)
        if said.labels is None:
            raise FittingError("the data has no labels; give (inputs, labels), or batches that have them")
        check_rows(said.logits, said.labels)
        return said.logits, said.labels


class TemperatureScaler(_Fitting):
    """Fits the temperature of the highest likelihood, `on="ensemble"` (labels never change) or `on="members"`.

    `scaler(inputs)` returns log-probabilities `(B, C)` at that temperature; `scaler.report` says what it changed.
    """

    def __init__(self, model: Model | None = None, on: str = "ensemble"):
        super().__init__(model)
        self.on = on
        self.report: TemperatureFit | None = None

    def fit(self, data: Data | Answers) -> "TemperatureScaler":
        """Fit on labelled rows. Threshold and quantile fitted earlier hold at another temperature, and are dropped."""
        self.report = fit_temperature(*self._labelled(data), self.on)
        dropped = [name for name in ("ood", "conformal") if getattr(self.fitted, name) is not None]
        self.fitted = Fitted(temperature=self.report.temperature)
        if self.report.at_border:
            warnings.warn(
                "the likelihood still rises at the border of the range: these rows do not determine a temperature, "
                "and it stays 1; fit on more rows, or on rows the model was not trained on",
                HydraWarning,
                stacklevel=2,
            )
        if dropped:
            warnings.warn(
                f"a new temperature changes scores and probabilities: {' and '.join(dropped)} fitted before were "
                "dropped; fit them again",
                HydraWarning,
                stacklevel=2,
            )
        return self

    def __call__(self, inputs: Data | Answers) -> Tensor:
        if self.fitted.temperature is None:
            raise FittingError("no temperature is fitted; call fit(data) first")
        return tempered_log_probs(self._logits(inputs), self.fitted.temperature)


class OODDetector(_Fitting):
    """Tells inputs that look unlike known data by one of the scores in `uncertainty.SCORES`.

    `detector(inputs)` returns the scores `(B,)`, higher = more out of distribution; `detector.is_ood(inputs)` compares
    them with the threshold. A temperature fitted on anything but a hydra is handed on with `fitted=scaler.fitted`.
    """

    def __init__(self, model: Model | None = None, score: str = "msp", fitted: Fitted | None = None):
        super().__init__(model, fitted)
        check_choice(score, 1.0)
        self.score = score

    def fit(self, data: Data | Answers, accept: float = 0.95) -> "OODDetector":
        """Set the threshold so that a share `accept` of known rows lie at or below it; labels are not looked at."""
        self.fitted = replace(self.fitted, ood=fit_ood_threshold(self(data), self.score, accept))
        return self

    @property
    def threshold(self) -> float:
        """Scores above it are out of distribution."""
        ood = self.fitted.ood
        if ood is None or ood.score != self.score:
            raise FittingError(f"no threshold on {self.score} is fitted; call fit(data) first")
        return ood.threshold

    def __call__(self, inputs: Data | Answers) -> Tensor:
        return ood_scores(self.score, finest(self._logits(inputs)), self.fitted.temperature)

    def is_ood(self, inputs: Data | Answers) -> Tensor:
        """Which inputs lie above the threshold `(B,)`."""
        threshold = self.threshold
        return self(inputs) > threshold


class ConformalSets(_Fitting):
    """Fits sets of labels that hold the right one as often as promised, by `"thr"` (small sets) or `"aps"` (adaptive).

    `sets(inputs)` says which labels each set holds `(B, C)`. The promise is for rows drawn as those fitted on were; it
    is exact only if the temperature was fitted on other rows.
    """

    def __init__(self, model: Model | None = None, method: str = "thr", fitted: Fitted | None = None):
        super().__init__(model, fitted)
        check_promise(method, 0.5)
        self.method = method

    def fit(self, data: Data | Answers, coverage: float = 0.9) -> "ConformalSets":
        """Fit on labelled rows the quantile that keeps the promise."""
        logits, labels = self._labelled(data)
        self.fitted = replace(self.fitted, conformal=fit_conformal(self._probs(logits), labels, coverage, self.method))
        return self

    def __call__(self, inputs: Data | Answers) -> Tensor:
        conformal = self.fitted.conformal
        if conformal is None or conformal.method != self.method:
            raise FittingError(f"no quantile by {self.method!r} is fitted; call fit(data) first")
        return prediction_sets(self._probs(self._logits(inputs)), conformal)

    def _probs(self, logits: Tensor) -> Tensor:
        return tempered_log_probs(finest(logits), self.fitted.temperature).exp()
