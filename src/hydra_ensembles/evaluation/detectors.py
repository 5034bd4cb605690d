"""The field's free detectors on one network: KNN, Mahalanobis, ViM. They see its features, and known data only.

Shapes: B batch, R known rows, D width of the features, P principal dimensions, C classes, L classes with rows. Numbers
are in float64. Scores: higher = more out of distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs
from hydra_ensembles.backbones.readouts import Projection, Readout
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.heads import Member
from hydra_ensembles.uncertainty import FittingError

CHUNK_NUMBERS = 2**23
"""Distances held at a time: 64 MB."""


@dataclass(frozen=True)
class KNN:
    """Distance to the k-th nearest known row, of features on the unit sphere (Sun et al. 2022)."""

    bank_RD: Tensor
    k: int

    def scores(self, features_BD: Tensor) -> Tensor:
        """`(B,)`: 0 to 2."""

        def kth(rows_BD: Tensor) -> Tensor:
            return torch.cdist(rows_BD, self.bank_RD).kthvalue(self.k, dim=-1).values

        return _in_chunks(kth, _on_sphere(features_BD.double()), len(self.bank_RD))


@dataclass(frozen=True)
class Mahalanobis:
    """Squared distance to the nearest class mean, by one covariance shared by all classes (Lee et al. 2018)."""

    origin_D: Tensor
    whitening_DP: Tensor
    """A root of the (pseudo-)inverse covariance: distances behind it are Euclidean."""
    means_LP: Tensor

    def scores(self, features_BD: Tensor) -> Tensor:
        """`(B,)`: from 0."""

        def nearest(rows_BD: Tensor) -> Tensor:
            whitened = (rows_BD - self.origin_D) @ self.whitening_DP
            return torch.cdist(whitened, self.means_LP).amin(dim=-1).square()

        return _in_chunks(nearest, features_BD.double(), len(self.means_LP))


@dataclass(frozen=True)
class ViM:
    """What of a feature lies outside the principal space, as a logit of one class more (Wang et al. 2022)."""

    origin_D: Tensor
    residual_DQ: Tensor
    """Columns span what is not principal, Q = D - P."""
    alpha: float

    def scores(self, features_BD: Tensor, logits_BC: Tensor) -> Tensor:
        """`(B,)`: the virtual logit above the energy; orders as its softmax probability does, and never saturates."""
        residual_BQ = (features_BD.double() - self.origin_D) @ self.residual_DQ
        virtual: Tensor = self.alpha * torch.linalg.vector_norm(residual_BQ, dim=-1)
        return virtual - logits_BC.double().logsumexp(dim=-1)


@dataclass(frozen=True)
class Detectors:
    """All three, fitted on the same known rows."""

    knn: KNN
    mahalanobis: Mahalanobis
    vim: ViM

    def scores(self, features_BD: Tensor, logits_BC: Tensor) -> dict[str, Tensor]:
        """By detector, how unknown each row looks `(B,)`; logits as of one network, `(B, C)` or `(B, 1, C)`."""
        return {
            "knn": self.knn.scores(features_BD),
            "mahalanobis": self.mahalanobis.scores(features_BD),
            "vim": self.vim.scores(features_BD, _of_one(logits_BC)),
        }


def fit_detectors(
    features_RD: Tensor,
    logits_RC: Tensor,
    labels_R: Tensor,
    weight_CD: Tensor,
    bias_C: Tensor | None = None,
    k: int = 50,
    principal: int | None = None,
) -> Detectors:
    """Fit all three on known rows.

    Args:
        features_RD: what the classifier saw of each row; see `features_and_logits`.
        logits_RC: what it made of it.
        labels_R: the right classes; classes without rows are left out.
        weight_CD: of the classifier; see `classifier_of`.
        bias_C: of the classifier.
        k: the neighbour that counts for KNN; the farthest if there are fewer rows.
        principal: dimensions of ViM's principal space; by default by the width, see `principal_dimensions`.
    """
    logits_RC = _of_one(logits_RC)
    if not len(features_RD) == len(logits_RC) == len(labels_R) or len(features_RD) == 0:
        raise FittingError(
            f"features, logits and labels of the same rows are needed, found {len(features_RD)}, {len(logits_RC)} "
            f"and {len(labels_R)}"
        )
    if not (features_RD.isfinite().all() and logits_RC.isfinite().all()):
        raise FittingError("some features or logits of the known rows are not finite; no detector is fitted on them")
    if k < 1:
        raise FittingError(f"the k-th neighbour is counted from 1, found k={k}")
    features = features_RD.double()
    return Detectors(
        KNN(_on_sphere(features), min(k, len(features))),
        fit_mahalanobis(features, labels_R),
        fit_vim(features, logits_RC, weight_CD, bias_C, principal),
    )


def fit_mahalanobis(features_RD: Tensor, labels_R: Tensor) -> Mahalanobis:
    """Class means and the shared covariance, inverted where it is not singular."""
    features, labels = features_RD.double(), labels_R.long()
    origin = features.mean(dim=0)
    centred = features - origin
    _, place = labels.unique(return_inverse=True)
    rows_L = place.bincount()
    means = torch.zeros(len(rows_L), features.shape[1], dtype=torch.float64, device=features.device)
    means.index_add_(0, place, centred).div_(rows_L[:, None])
    spread = centred - means[place]
    variances, directions = torch.linalg.eigh(spread.T @ spread / len(spread))
    # As pinv cuts: what rounding leaves of a direction without variance must not count as infinitely far.
    kept = variances > variances[-1] * len(variances) * torch.finfo(torch.float64).eps
    if not kept.any():
        raise FittingError(
            f"the features of all {len(features)} known rows are those of their class mean; "
            "a covariance needs rows that differ within a class"
        )
    whitening = directions[:, kept] / variances[kept].sqrt()
    return Mahalanobis(origin, whitening, means @ whitening)


def fit_vim(
    features_RD: Tensor, logits_RC: Tensor, weight_CD: Tensor, bias_C: Tensor | None, principal: int | None = None
) -> ViM:
    """The space around the classifier's origin that known features do not use, and the scale of its logit."""
    features = features_RD.double()
    weight = weight_CD.to(features)  # a classifier may be on a GPU, where the features no longer are
    rows, width = features.shape
    dimensions = principal_dimensions(width) if principal is None else principal
    if not 0 <= dimensions < min(rows, width):
        raise FittingError(
            f"{rows} known rows of width {width} do not reach beyond a principal space of {dimensions} dimensions; "
            "give more rows, or a smaller `principal`"
        )
    origin = features.new_zeros(width) if bias_C is None else -torch.linalg.pinv(weight) @ bias_C.to(features)
    centred = features - origin
    # eigh sorts from the smallest: the first columns are the residual space.
    residual = torch.linalg.eigh(centred.T @ centred / rows).eigenvectors[:, : width - dimensions]
    mean_norm, mean_logit = (centred @ residual).norm(dim=-1).mean(), logits_RC.double().amax(dim=-1).mean()
    if not mean_logit > 0 or not mean_norm > 1e-12 * centred.norm(dim=-1).mean():
        raise FittingError(
            f"ViM scales a residual, here {mean_norm:.3g} on average, to the highest logits, here {mean_logit:.3g}; "
            "both must be above 0"
        )
    return ViM(origin, residual, float(mean_logit / mean_norm))


def principal_dimensions(width: int) -> int:
    """The paper's 1000 from a width of 2048 and 512 below; ours for what is narrower than its networks: half.

    >>> [principal_dimensions(width) for width in (2048, 768, 384)]
    [1000, 512, 192]
    """
    if width >= 768:
        return 1000 if width >= 2048 else 512
    return width // 2


@torch.no_grad()
def features_and_logits(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """What the final classifier of one network sees `(B, D)`, and what it makes of it `(B, 1, C)`.

    Through the composed backbone, which has no dropout: training mode does not matter.
    """
    backbone = _one_network(model)
    seen: list[Tensor] = []
    hook = _classifier(backbone).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        logits = backbone(inputs)
    finally:
        hook.remove()
    return seen[0], logits[:, None]


def classifier_of(model: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight `(C, D)` and bias `(C,)` of the final classifier of one network."""
    classifier = _classifier(_one_network(model))
    weight = classifier.weight.detach()
    bias = None if classifier.bias is None else classifier.bias.detach()
    return weight.T if classifier.transposed else weight, bias


def _one_network(model: nn.Module) -> Backbone:
    if isinstance(model, Hydra):
        raise FittingError(
            f"these detectors see the features of one network, found a hydra of {model.num_members}; "
            "give one of its members"
        )
    backbone = model.backbone if isinstance(model, Member) else Backbone.of(model)
    if len(backbone.towers) > 1:
        raise FittingError(
            f"these detectors see the features of one tower, {type(model).__name__} has {', '.join(backbone.towers)}"
        )
    return backbone


def _classifier(backbone: Backbone) -> Projection:
    (tower,) = backbone.towers.values()
    readout = tower.readout
    assert isinstance(readout, Readout)
    if not isinstance(readout.classifier, Projection):
        raise FittingError("the network ends in features; these detectors need the classifier behind them")
    return readout.classifier


def _on_sphere(features_RD: Tensor) -> Tensor:
    return F.normalize(features_RD, dim=-1)


def _of_one(logits: Tensor) -> Tensor:
    """Logits `(R, C)` of one network, given so or as `(R, 1, C)`."""
    if logits.dim() == 3 and logits.shape[1] == 1:
        return logits[:, 0]
    if logits.dim() != 2:
        raise FittingError(f"these detectors take logits of one network, (rows, classes), found {tuple(logits.shape)}")
    return logits


def _in_chunks(score: Callable[[Tensor], Tensor], rows_BD: Tensor, others: int) -> Tensor:
    """`score` of so many rows at a time that their distances to `others` fit into little memory."""
    if len(rows_BD) == 0:
        return rows_BD.new_zeros(0)
    return torch.cat([score(chunk) for chunk in rows_BD.split(max(1, CHUNK_NUMBERS // others))])
