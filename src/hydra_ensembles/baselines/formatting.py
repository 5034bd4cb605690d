"""Detectors that see only how a text is written: its length, its capitals, its marks. What a real one must beat.

Some text sets are tokenised or lower-cased at their source, so they can be told apart without a word being read.
Shapes: R rows, F features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Text = str | tuple[str, str]
FEATURES = ("log words", "log characters", "capitals", "digits", "marks", "spaced marks")


def formatting(texts: Sequence[Text]) -> Tensor:
    """How texts are written `(R, F)`: see `FEATURES`; shares are of characters, spaced marks of words."""
    return torch.tensor([_features(text if isinstance(text, str) else " ".join(text)) for text in texts])


def _features(text: str) -> list[float]:
    words, characters = text.split(), max(len(text), 1)
    counts = (
        sum(c.isupper() for c in text) / characters,
        sum(c.isdigit() for c in text) / characters,
        sum(not c.isalnum() and not c.isspace() for c in text) / characters,
        sum(not any(c.isalnum() for c in word) for word in words) / max(len(words), 1),
    )
    return [math.log1p(len(words)), math.log1p(characters), *counts]


@dataclass(frozen=True, eq=False)
class FormattingDetector:
    """How unlike known texts a text is written: the Mahalanobis distance of its formatting; higher = stranger.

    It sees known texts only. `FormattingClassifier` sees unknown ones too, as circuits do.
    """

    mean_F: Tensor
    precision_FF: Tensor

    @classmethod
    def fit(cls, known: Sequence[Text]) -> "FormattingDetector":
        """From known texts."""
        x = formatting(known).double()
        covariance = torch.cov(x.T) + 1e-6 * torch.eye(x.shape[1], dtype=x.dtype)
        return cls(x.mean(dim=0), torch.linalg.inv(covariance))

    def scores(self, texts: Sequence[Text]) -> Tensor:
        """`(R,)`"""
        x = formatting(texts).double() - self.mean_F
        return ((x @ self.precision_FF) * x).sum(dim=1)


@dataclass(frozen=True, eq=False)
class FormattingClassifier:
    """The log-odds that a text is unknown, by logistic regression on its formatting."""

    mean_F: Tensor
    scale_F: Tensor
    weight_F: Tensor
    bias: Tensor

    @classmethod
    def fit(cls, known: Sequence[Text], unknown: Sequence[Text], ridge: float = 1e-3) -> "FormattingClassifier":
        """From known and unknown texts."""
        x = torch.cat([formatting(known), formatting(unknown)]).double()
        is_unknown = torch.cat([torch.zeros(len(known)), torch.ones(len(unknown))]).double()
        mean, scale = x.mean(dim=0), x.std(dim=0).clamp_min(1e-6)
        x = (x - mean) / scale
        weight = torch.zeros(x.shape[1], dtype=x.dtype, requires_grad=True)
        bias = torch.zeros((), dtype=x.dtype, requires_grad=True)
        optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimiser.zero_grad()
            value = torch.nn.functional.binary_cross_entropy_with_logits(x @ weight + bias, is_unknown)
            value = value + ridge * weight.square().sum()
            value.backward()
            return value

        optimiser.step(loss)
        return cls(mean, scale, weight.detach(), bias.detach())

    def scores(self, texts: Sequence[Text]) -> Tensor:
        """`(R,)`"""
        x = (formatting(texts).double() - self.mean_F) / self.scale_F
        return x @ self.weight_F + self.bias
