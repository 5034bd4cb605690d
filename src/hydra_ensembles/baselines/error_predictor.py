"""A small network that tells when a zero-shot classifier errs, in the manner of ViLU (Lafon et al., 2025).

Shapes: B batch, R rows, E features, C classes.
"""

import copy
import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.backbones.zero_shot import class_logits
from hydra_ensembles.baselines.zero_shot import by_batch, zero_shot_of
from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.answers import in_evaluation_mode
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe
from hydra_ensembles.members.checkpoint import own_randomness
from hydra_ensembles.members.recipes import rate_at, recipe_named

RECIPE = Recipe("error predictor", learning_rate=1e-3, epochs=50, batch_size=128, weight_decay=0.01)
GAPS = 4
"""How far the highest logit is above the next ones; so many are looked at."""


class ErrorPredictor(nn.Module):
    """One network, and the probability that it errs: labels are the network's, only how sure it is changes.

    As in ViLU: an image's feature, the embedding of the class that was predicted, and a context of all classes by
    cross-attention go through an MLP that is trained, with a weighted binary cross-entropy, to tell errors from right
    answers; towers stay as they are; unknown inputs are taken for errors.

    Not as in ViLU: the MLP also sees by how much the highest logit leads, is smaller, and is fitted on a few thousand
    known rows that the network was not trained on, instead of a data set's training rows for 100 to 300 epochs. An
    error is at most as probable as if classes were drawn, 1 - 1/C. So it can be said as an answer: every row gets a
    temperature of its own, at which the highest probability is that of being right. NLL and Brier score of such
    answers are not part of ViLU.
    """

    def __init__(self, network: nn.Module, hidden: tuple[int, ...] = (256, 128), seed: int = 0):
        super().__init__()
        self.network = network
        classes_CE = zero_shot_of(network, "ErrorPredictor").class_embeddings().detach()
        C, E = classes_CE.shape
        with own_randomness():
            torch.manual_seed(seed)
            self.queries, self.keys, self.values = (nn.Linear(E, E, bias=False) for _ in range(3))
            sizes = [3 * E + min(GAPS, C - 1), *hidden]
            layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
            self.mlp = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
        for part in (self.queries, self.keys, self.values, self.mlp):
            part.to(classes_CE.device)

    def fit(
        self, train: Data, val: Data | None = None, recipe: Recipe | str | None = None, **options: Any
    ) -> list[float]:
        """Learn errors from known rows with labels, best ones that the network was not trained on.

        Of a recipe, the rate and its schedule, the epochs, the batch size, the weight decay and the seed count. With
        validation rows the epoch with the lowest loss on them is kept. Returns the loss by epoch.
        """
        with in_evaluation_mode([self.network]):
            return self._fit(train, val, RECIPE if recipe is None else recipe_named(recipe))

    def _fit(self, train: Data, val: Data | None, settings: Recipe) -> list[float]:
        images_RE, logits_RC, errs_R = self._errors(train)
        held_out = None if val is None else self._errors(val)
        # log(1 + right / wrong), ViLU's weight of an error.
        weight = math.log1p(float((errs_R == 0).sum()) / max(float(errs_R.sum()), 1.0))
        trained = [*self.queries.parameters(), *self.keys.parameters(), *self.values.parameters()]
        optimiser = torch.optim.AdamW([*trained, *self.mlp.parameters()], weight_decay=settings.weight_decay)
        generator = torch.Generator().manual_seed(settings.seed)
        by_epoch = -(-len(errs_R) // settings.batch_size)
        steps = settings.steps or by_epoch * (settings.epochs or 1)
        losses: list[float] = []
        best: tuple[float, dict[str, Tensor]] | None = None
        for epoch in range(-(-steps // by_epoch)):
            total = 0.0
            order = torch.randperm(len(errs_R), generator=generator).to(errs_R.device)
            for place, rows in enumerate(order.split(settings.batch_size)):
                for group in optimiser.param_groups:
                    group["lr"] = rate_at(epoch * by_epoch + place, steps, settings)
                with torch.enable_grad():
                    loss = self._loss(images_RE[rows], logits_RC[rows], errs_R[rows], weight)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) * len(rows)
            losses.append(total / len(errs_R))
            if held_out is not None:
                with torch.no_grad():
                    found = float(self._loss(*held_out, weight))
                if best is None or found < best[0]:
                    best = found, copy.deepcopy({k: v for k, v in self.state_dict().items() if _is_own(k)})
        if best is not None:
            self.load_state_dict(best[1], strict=False)
        return losses

    @torch.no_grad()
    def error_probs(self, inputs: Inputs) -> Tensor:
        """How probable it is that the network errs `(B,)`, at most 1 - 1/C."""
        images_BE, logits_BC = self._look(inputs)
        return self._ceiling(logits_BC) * self._error_logits(images_BE, logits_BC).sigmoid()

    @torch.no_grad()
    def members(self, inputs: Inputs) -> Tensor:
        """The network's logits `(B, 1, C)`, at the temperature of each row at which it is as sure as it should be."""
        images_BE, logits_BC = self._look(inputs)
        error_B = self._ceiling(logits_BC) * self._error_logits(images_BE, logits_BC).double().sigmoid()
        return as_sure_as(logits_BC, 1 - error_B)[:, None].to(logits_BC.dtype)

    def cost(self, text_tokens: int | None = None) -> Cost:
        """One network, its MLP, and attention over the classes, whose keys and values are made once."""
        one = network_cost(self.network, self.network, text_tokens)
        own = [layer for layer in self.mlp if isinstance(layer, nn.Linear)]
        C, E = self._classes().shape
        attention = self.queries.weight.numel() + 2 * C * E
        params = 3 * self.queries.weight.numel() + sum(p.numel() for layer in own for p in layer.parameters())
        return one + Cost(params, attention + sum(layer.weight.numel() for layer in own))

    def _classes(self) -> Tensor:
        return zero_shot_of(self.network, "ErrorPredictor").class_embeddings().detach().float()

    def _look(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Directions of images `(B, E)` and logits `(B, C)`, in fp32, whatever the network is in."""
        classifier = zero_shot_of(self.network, "ErrorPredictor")
        images_BE = F.normalize(classifier.image_features(inputs), dim=-1)
        logits_BC = class_logits(images_BE, classifier.class_embeddings(), *classifier.contrast())
        return images_BE.float(), logits_BC.float()

    def _errors(self, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        """Directions, logits, and whether the network errs, 0 or 1 `(R,)`."""
        (images_RE, logits_RC), labels_R = by_batch(self.network, data, self._look)
        return images_RE, logits_RC, (logits_RC.argmax(dim=-1) != labels_R).to(logits_RC.dtype)

    def _error_logits(self, images_BE: Tensor, logits_BC: Tensor) -> Tensor:
        """`(B,)`"""
        with torch.no_grad():
            classes_CE = self._classes()
        scores_BC = self.queries(images_BE) @ self.keys(classes_CE).T / math.sqrt(classes_CE.shape[1])
        context_BE = scores_BC.softmax(dim=-1) @ self.values(classes_CE)
        top = logits_BC.topk(min(GAPS + 1, logits_BC.shape[1]), dim=-1)
        gaps = top.values[:, :1] - top.values[:, 1:]
        seen = torch.cat([images_BE, classes_CE[top.indices[:, 0]], context_BE, gaps], dim=-1)
        return self.mlp(seen)[:, 0]  # type: ignore[no-any-return]

    def _ceiling(self, logits_BC: Tensor) -> float:
        return 1 - 1 / logits_BC.shape[1]

    def _loss(self, images_BE: Tensor, logits_BC: Tensor, errs_B: Tensor, weight: float) -> Tensor:
        """Binary cross-entropy, errors weighted."""
        error_logits_B = self._error_logits(images_BE, logits_BC)
        ceiling = self._ceiling(logits_BC)
        wrong_B = math.log(ceiling) + F.logsigmoid(error_logits_B)
        right_B = (1 - ceiling * error_logits_B.sigmoid()).log()
        return -(weight * errs_B * wrong_B + (1 - errs_B) * right_B).mean()


def as_sure_as(logits_BC: Tensor, confidence_B: Tensor) -> Tensor:
    """Logits divided row by row until their highest probability is the confidence, between 1/C and 1; highest at 0.

    >>> as_sure_as(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0.5])).softmax(dim=-1).amax()
    tensor(0.5000, dtype=torch.float64)
    """
    below_BC = logits_BC.double() - logits_BC.double().amax(dim=-1, keepdim=True)
    wanted_B = -confidence_B.double().log()
    # -log of the highest probability falls with the factor, from log C to that of ties: halve the range of its log.
    low_B, high_B = torch.full_like(wanted_B, -40.0), torch.full_like(wanted_B, 40.0)
    for _ in range(80):
        middle_B = (low_B + high_B) / 2
        is_too_sure = (below_BC * middle_B.exp()[:, None]).logsumexp(dim=-1) < wanted_B
        low_B, high_B = torch.where(is_too_sure, low_B, middle_B), torch.where(is_too_sure, middle_B, high_B)
    return below_BC * ((low_B + high_B) / 2).exp()[:, None]


def _is_own(name: str) -> bool:
    return not name.startswith("network.")
