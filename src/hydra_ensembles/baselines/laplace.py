"""A last-layer Laplace approximation of a zero-shot classifier, in the manner of BayesVLM (Baumann et al., 2024).

Shapes: B batch, N inputs, R rows, D width that a last layer sees, E features, C classes, P prompts a class. Numbers
are in float64.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.zero_shot import by_batch, last_layer, seen_and_features, zero_shot_of
from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe

PRIORS = tuple(10.0 ** (half / 2) for half in range(-4, 17))
"""Prior precisions to choose from."""


class LastLayerLaplace(nn.Module):
    """One network whose last two layers, of the image and of the text tower, are Gaussian instead of certain.

    As in BayesVLM: each layer's covariance is a Kronecker product, from the Gauss-Newton matrix; of features only the
    variance by coordinate is carried on; cosine similarities get a mean and a variance in closed form (ProbCosine);
    logits are divided by sqrt(1 + pi/8 variance) (probit), so that answers come from one pass and labels may change.

    Not as in BayesVLM: the Gauss-Newton matrix is that of the classifier's own cross-entropy on known images, for both
    layers, not that of the contrastive loss on 327,000 pairs of LAION; on the text side it has no terms between
    classes. The number of rows is the real one, not a pseudo-count that is tuned, and one prior precision serves both
    layers, the best of a grid by the likelihood of validation rows, not by the marginal likelihood. With several
    prompts a class, their lengths are taken as known. A layer's bias counts as one column more.
    """

    prior_precision: Tensor
    class_mean_CE: Tensor
    class_variance_CE: Tensor
    prompts_CD: Tensor

    def __init__(self, network: nn.Module, prior_precision: float = 1.0):
        super().__init__()
        self.network = network
        classifier = zero_shot_of(network, "LastLayerLaplace")
        with torch.no_grad():
            seen_ND, features_NE = _seen(network, "text", None)
        prompts_CD = _prompts(seen_ND, features_NE, classifier.prompts.shape[1])
        self.text = LayerPosterior(prompts_CD.shape[1], features_NE.shape[1]).to(prompts_CD.device)
        image = last_layer(classifier, "vision")
        width = image.weight.shape[0 if image.transposed else 1] + (image.bias is not None)
        self.vision = LayerPosterior(width, features_NE.shape[1]).to(prompts_CD.device)
        self.register_buffer("prompts_CD", prompts_CD)
        weight_ED = _weight(last_layer(classifier, "text"))
        self.register_buffer("class_mean_CE", prompts_CD @ weight_ED.T)
        self.register_buffer("class_variance_CE", torch.zeros_like(self.class_mean_CE))
        self.register_buffer("prior_precision", torch.tensor(0.0, dtype=torch.float64))
        self.believe(prior_precision)

    def believe(self, prior_precision: float) -> None:
        """Take another prior precision; with an infinite one the layers are certain."""
        if not prior_precision > 0:
            raise BaselineError(f"a prior precision is above 0, found {prior_precision!r}")
        self.prior_precision.fill_(prior_precision)
        self.class_variance_CE.copy_(self.text.variances(self.prompts_CD, prior_precision))

    def fit(
        self,
        train: Data,
        val: Data | None = None,
        recipe: Recipe | str | None = None,
        priors: Sequence[float] = PRIORS,
        **options: Any,
    ) -> None:
        """Curvature from known images; with validation rows and their labels, the prior precision too.

        There is nothing to train, so a recipe and its options say nothing here.
        """
        (seen_RD, mean_RE), _ = by_batch(self.network, train, self._seen_images, labels=False)
        image, text = _curvatures(mean_RE, self.class_mean_CE, *self._contrast())
        self.vision.learn(seen_RD, image, len(seen_RD))
        self.text.learn(self.prompts_CD, text, len(seen_RD) * len(self.prompts_CD))
        self.believe(float(self.prior_precision))
        if val is not None:
            (seen_RD, mean_RE), labels_R = by_batch(self.network, val, self._seen_images)
            losses = {}
            for prior in priors:
                self.believe(prior)
                losses[prior] = float(F.cross_entropy(self._logits(seen_RD, mean_RE), labels_R))
            # Of equals the highest, which is the plainest.
            self.believe(max(priors, key=lambda prior: (-losses[prior], prior)))

    def for_classes(self, network: nn.Module) -> "LastLayerLaplace":
        """The same belief about the two layers, for other classes: of a classifier from the same model."""
        other = LastLayerLaplace(network)
        other.vision.load_state_dict(self.vision.state_dict())
        other.text.load_state_dict(self.text.state_dict())
        other.believe(float(self.prior_precision))
        return other

    def members(self, inputs: Inputs) -> Tensor:
        """Logits of the one network `(B, 1, C)`, as sure as its last layers are."""
        with torch.no_grad():
            images = inputs if isinstance(inputs, Tensor) else inputs["pixel_values"]
            return self._logits(*self._seen_images(images))[:, None].to(images.dtype)

    def cost(self, text_tokens: int | None = None) -> Cost:
        """One network, two more matrices for each layer's covariance, and a variance for each similarity."""
        one = network_cost(self.network, self.network, text_tokens)
        parts = (self.vision.buffers(), self.text.buffers(), self.buffers(recurse=False))
        own = sum(buffer.numel() for part in parts for buffer in part)
        (D, E), C = (self.vision.seen_vectors_DD.shape[0], self.class_mean_CE.shape[1]), len(self.class_mean_CE)
        return one + Cost(own, D * D + 3 * C * E)

    def _seen_images(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return _seen(self.network, "vision", images)

    def _logits(self, seen_BD: Tensor, mean_BE: Tensor) -> Tensor:
        """`(B, C)`"""
        variance_BE = self.vision.variances(seen_BD, float(self.prior_precision))
        mean_BC, variance_BC = cosine_moments(mean_BE, variance_BE, self.class_mean_CE, self.class_variance_CE)
        scale, bias = self._contrast()
        logits_BC = scale * mean_BC if bias is None else scale * mean_BC + bias
        return logits_BC / (1 + math.pi / 8 * scale**2 * variance_BC).sqrt()

    def _contrast(self) -> tuple[Tensor, Tensor | None]:
        """What similarities are multiplied with, and what is added."""
        scale, bias = zero_shot_of(self.network, "LastLayerLaplace").contrast()
        return scale.detach().double().exp(), None if bias is None else bias.detach().double()


class LayerPosterior(nn.Module):
    """The covariance of a last layer: of what it sees times of what it makes of it, both by their eigenvectors."""

    seen_values_D: Tensor
    seen_vectors_DD: Tensor
    made_values_E: Tensor
    made_vectors_EE: Tensor

    def __init__(self, width: int, features: int):
        super().__init__()
        for name, size in (("seen", width), ("made", features)):
            letter = "D" if name == "seen" else "E"
            self.register_buffer(f"{name}_values_{letter}", torch.zeros(size, dtype=torch.float64))
            self.register_buffer(f"{name}_vectors_{letter * 2}", torch.eye(size, dtype=torch.float64))

    def learn(self, seen_ND: Tensor, curvature_EE: Tensor, rows: int) -> None:
        """From what the layer saw, and the mean Gauss-Newton matrix of what it made of it, over so many rows.

        The Gauss-Newton matrix of the layer is rows x mean(seen seen^T) x curvature; each factor gets sqrt(rows).
        """
        factors = {"seen": seen_ND.T @ seen_ND / len(seen_ND), "made": curvature_EE}
        for name, factor in factors.items():
            values, vectors = torch.linalg.eigh(factor * math.sqrt(rows))
            letter = "D" if name == "seen" else "E"
            getattr(self, f"{name}_values_{letter}").copy_(values.clamp_min(0))
            getattr(self, f"{name}_vectors_{letter * 2}").copy_(vectors)

    def variances(self, seen_ND: Tensor, prior_precision: float) -> Tensor:
        """Of each coordinate of the features of some inputs `(N, E)`."""
        return _inverse_form(self.seen_values_D, seen_ND @ self.seen_vectors_DD, prior_precision)[:, None] * (
            _inverse_form(self.made_values_E, self.made_vectors_EE, prior_precision)
        )

    def covariances(self, prior_precision: float) -> tuple[Tensor, Tensor]:
        """Both factors, `(D, D)` and `(E, E)`."""
        return (
            _inverse(self.seen_values_D, self.seen_vectors_DD, prior_precision),
            _inverse(self.made_values_E, self.made_vectors_EE, prior_precision),
        )


def cosine_moments(
    mean_BE: Tensor, variance_BE: Tensor, other_CE: Tensor, other_variance_CE: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the cosine similarity of Gaussian vectors `(B, C)` (BayesVLM's ProbCosine).

    The expected length stands in for the length: of certain vectors the variance is 0 and the mean the similarity.
    """
    lengths_B = (mean_BE.square() + variance_BE).sum(dim=-1)
    lengths_C = (other_CE.square() + other_variance_CE).sum(dim=-1)
    squares_BC = lengths_B[:, None] * lengths_C
    mean_BC = mean_BE @ other_CE.T / squares_BC.sqrt()
    spread_BC = variance_BE @ (other_variance_CE + other_CE.square()).T + mean_BE.square() @ other_variance_CE.T
    return mean_BC, spread_BC / squares_BC


def _seen(network: nn.Module, tower: str, inputs: Inputs | None) -> tuple[Tensor, Tensor]:
    """What a last layer sees, with a 1 where it has a bias, and what it makes of it."""
    classifier = zero_shot_of(network, "LastLayerLaplace")
    seen, features = (found.double() for found in seen_and_features(classifier, tower, inputs))
    return seen if last_layer(classifier, tower).bias is None else F.pad(seen, (0, 1), value=1.0), features


def _weight(layer: Any) -> Tensor:
    """`(E, D)`, the bias as its last column."""
    weight = (layer.weight.T if layer.transposed else layer.weight).detach().double()
    return weight if layer.bias is None else torch.cat([weight, layer.bias.detach().double()[:, None]], dim=1)


def _prompts(seen_ND: Tensor, features_NE: Tensor, per_class: int) -> Tensor:
    """What the text layer sees of each class `(C, D)`: the mean of its prompts, each by the length it ends up with.

    The layer makes of it the mean of the prompts' directions, as long as a prompt is on average.
    """
    lengths_CP: Tensor = features_NE.norm(dim=-1).unflatten(0, (-1, per_class))
    shares_CP = lengths_CP.mean(dim=1, keepdim=True) / lengths_CP
    seen_CPD: Tensor = seen_ND.unflatten(0, (-1, per_class))
    return (seen_CPD * shares_CP[..., None]).mean(dim=1)


def _curvatures(image_RE: Tensor, class_CE: Tensor, scale: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean Gauss-Newton matrices `(E, E)` of the cross-entropy, by image features and by class features."""
    E, R, C = image_RE.shape[1], len(image_RE), len(class_CE)
    image = torch.zeros(E, E, dtype=torch.float64, device=image_RE.device)
    text = torch.zeros_like(image)
    classes_CE, class_lengths_C = F.normalize(class_CE, dim=-1), class_CE.norm(dim=-1)
    for part_BE in image_RE.split(max(1, 2**22 // (C * E))):
        images_BE, lengths_B = F.normalize(part_BE, dim=-1), part_BE.norm(dim=-1)
        cosines_BC = images_BE @ classes_CE.T
        logits_BC = scale * cosines_BC if bias is None else scale * cosines_BC + bias
        probs_BC = logits_BC.softmax(dim=-1)
        # The slope of a cosine: the other's direction, without what is along one's own, by one's own length.
        slopes_BCE = (classes_CE - cosines_BC[..., None] * images_BE[:, None]) * (scale / lengths_B)[:, None, None]
        middle_B1E = (probs_BC[..., None] * slopes_BCE).sum(dim=1, keepdim=True)
        rows = (probs_BC.sqrt()[..., None] * (slopes_BCE - middle_B1E)).flatten(0, 1)
        image += rows.T @ rows
        slopes_BCE = images_BE[:, None] - cosines_BC[..., None] * classes_CE
        slopes_BCE = slopes_BCE * (scale / class_lengths_C)[:, None]
        rows = ((probs_BC * (1 - probs_BC)).sqrt()[..., None] * slopes_BCE).flatten(0, 1)
        text += rows.T @ rows
    return image / R, text / (R * C)


def _inverse_form(values: Tensor, along: Tensor, prior_precision: float) -> Tensor:
    """x^T (F + sqrt(prior) I)^-1 x, for rows x that are given along the eigenvectors of F."""
    return along.square() @ (1 / (values + math.sqrt(prior_precision)))


def _inverse(values: Tensor, vectors: Tensor, prior_precision: float) -> Tensor:
    return (vectors / (values + math.sqrt(prior_precision))) @ vectors.T
