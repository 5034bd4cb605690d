"""Zero-shot classifiers: a two-tower model asked about images, whose classes are names in prompts.

The prompts' tokens are part of the model, so that it takes images alone, like any classifier; class embeddings are made
of them and, in evaluation, kept until the model has changed.

Shapes: B images, C classes, P prompts a class, T tokens, E features.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones.backbone import Backbone, Contrast, Inputs, Tower, build_model, family_of
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import Part, UnsupportedBackbone
from hydra_ensembles.backbones.references import load_model, tokenizer_of
from hydra_ensembles.backbones.state import State
from hydra_ensembles.backbones.stems import TokenStem
from hydra_ensembles.errors import HydraWarning

TEMPLATES = ("a photo of a {}.",)
Tokenize = Callable[[list[str]], Tensor]
"""Texts to token ids `(texts, T)`, as open_clip's tokenisers do."""


class ZeroShotClassifier(nn.Module):
    """`classifier(images)` is logits `(B, C)`: scaled cosine similarities of images and class embeddings.

    A class embedding is the mean of the normalised embeddings of its prompts, normalised again.

    Args:
        model: of open_clip, or CLIP or SigLIP of transformers.
        classes: their names.
        prompts_CPT: token ids of every prompt of every class; see `ZeroShotClassifier.of`.
    """

    def __init__(self, model: nn.Module, classes: Sequence[str] | None, prompts_CPT: Tensor):
        super().__init__()
        _check_two_towers(model)
        if prompts_CPT.dim() != 3 or (classes is not None and len(classes) != len(prompts_CPT)):
            raise UnsupportedBackbone(
                f"prompts are token ids of shape (classes, prompts a class, tokens), for {len(classes or ())} classes; "
                f"found {tuple(prompts_CPT.shape)}"
            )
        self.model, self.classes = model, None if classes is None else list(classes)
        prompts_CPT = prompts_CPT.to(next(model.parameters()).device)
        self.prompts = nn.Parameter(prompts_CPT.contiguous(), requires_grad=False)
        self._kept: tuple[Any, Any, Tensor] | None = None

    @classmethod
    def of(
        cls, model: nn.Module, classes: Sequence[str], tokenize: Tokenize, templates: Sequence[str] = TEMPLATES
    ) -> "ZeroShotClassifier":
        """A classifier for named classes, every template filled with every name.

        Prompts are cut behind the longest one's end where nothing reads further: under a causal mask, or where padding
        is not attended to.
        """
        _check_two_towers(model)
        _check_names(classes, templates)
        texts = [template.replace("{}", name) for name in classes for template in templates]
        ids = tokenize(texts)
        stem = family_of(model).view(model).towers["text"].stem
        assert isinstance(stem, TokenStem)
        ids = ids[:, : _longest(ids, stem)]
        return cls(model, classes, ids.reshape(len(classes), len(templates), -1))

    @classmethod
    def of_reference(
        cls, reference: str, classes: Sequence[str], templates: Sequence[str] = TEMPLATES
    ) -> "ZeroShotClassifier":
        """The same, of a model that a reference names with its tokeniser: `open_clip:DIR` or `hf:DIR`."""
        model = load_model(reference)
        _check_two_towers(model)
        return cls.of(model, classes, tokenizer_of(reference), templates)

    def forward(self, images: Inputs) -> Tensor:
        return class_logits(self.image_features(images), self.class_embeddings(), *self.contrast())

    def image_features(self, images: Inputs) -> Tensor:
        """What the image tower makes of images `(B, E)`, of any length."""
        family: Any = family_of(self.model)
        return family.own_features(self.model, {"vision": images})["vision"]  # type: ignore[no-any-return]

    def contrast(self) -> tuple[Tensor, Tensor | None]:
        """What similarities are multiplied with, as a logarithm, and what is added then."""
        family: Any = family_of(self.model)
        return family.view_contrast(self.model)  # type: ignore[no-any-return]

    def class_embeddings(self) -> Tensor:
        """`(C, E)`, of length 1; in evaluation mode without gradients they are kept for the next images.

        They are made again once a number, its dtype or device, or autocast has changed, and after `train()` or
        `eval()`. A change in place that torch does not count (`.data`, fused optimisers) is seen after these only, or
        after a forward with gradients.
        """
        if torch.compiler.is_compiling():
            return self._embedded()
        if torch.is_grad_enabled() or any(part.training for part in self.model.modules()):
            self._kept = None
            return self._embedded()
        kept, numbers = self._kept, [*self.parameters(), *self.buffers()]
        if any(n.is_inference() for n in numbers):  # torch counts no changes of what was made in inference mode
            return self._embedded()
        seen = [(id(n), n.data_ptr(), n._version, n.dtype, n.device) for n in numbers], self._surroundings()
        if kept is None or kept[0] != seen:
            # Numbers and their memory are held, so that no others can have their ids and addresses.
            kept = self._kept = seen, (numbers, [n.detach() for n in numbers]), self._embedded()
        return kept[2]

    def train(self, mode: bool = True) -> Self:
        """Also forgets the class embeddings."""
        self._kept = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._kept = None  # else it would hold memory on the device that the model leaves
        return super()._apply(*args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]

    def _surroundings(self) -> tuple[Any, ...]:
        """What embeddings depend on beside the numbers: autocast, and whether gradients can ever go through them."""
        device = self.prompts.device.type
        is_cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if is_cast else None, torch.is_inference_mode_enabled()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def _embedded(self) -> Tensor:
        family: Any = family_of(self.model)
        features = family.own_features(self.model, {"text": self.prompts.flatten(0, 1)})["text"]
        return class_embeddings(features, self.prompts.shape[1])


def _check_two_towers(model: nn.Module) -> None:
    if family_of(model).view(model).contrast is None:
        raise UnsupportedBackbone(
            f"{type(model).__name__} has no text tower beside an image tower; a zero-shot classifier needs both"
        )


def _check_names(classes: Sequence[str], templates: Sequence[str]) -> None:
    """Refuse what prompts cannot be made of; say so where two classes have one name, as ImageNet's cranes."""
    for what, given in (("classes", classes), ("templates", templates)):
        if isinstance(given, str) or not given or not all(isinstance(one, str) and one.strip() for one in given):
            raise UnsupportedBackbone(f"{what} are a list of texts, each with something in it; found {given!r}")
    for template in templates:
        if "{}" not in template:
            raise UnsupportedBackbone(f"template '{template}' has no {{}} for the name of a class")
    twice = next((name for name, times in Counter(classes).items() if times > 1), None)
    if twice is not None:
        warnings.warn(
            f"several classes are called '{twice}': their prompts are the same, and so are their probabilities",
            HydraWarning,
            stacklevel=3,
        )


def class_embeddings(texts_NE: Tensor, per_class: int) -> Tensor:
    """Prompts' embeddings `(C * P, E)`, perhaps of several members `(M, C * P, E)`, as classes' `(C, E)`."""
    one = F.normalize(texts_NE, dim=-1).unflatten(-2, (-1, per_class)).mean(dim=-2)
    return F.normalize(one, dim=-1)


def class_logits(image_BE: Tensor, classes_CE: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Scaled cosine similarities `(B, C)`."""
    logits = scale.exp() * F.normalize(image_BE, dim=-1) @ classes_CE.T
    return logits if bias is None else logits + bias


class Prompted(Part):
    """A text stem that reads the prompts, whatever it is given."""

    whole_numbers = ("prompts",)

    def __init__(self, stem: TokenStem, prompts_CPT: nn.Parameter):
        super().__init__()
        self.stem, self.prompts = stem, prompts_CPT

    @property
    def width(self) -> int:
        return self.stem.width

    def forward(self, _inputs: Inputs | None) -> State:
        return self.stem(self.prompts.flatten(0, 1))  # type: ignore[no-any-return]


class PromptContrast(Part):
    """Joins images with classes, each of several prompts."""

    facts = ("per_class",)

    def __init__(self, logit_scale: nn.Parameter, logit_bias: nn.Parameter | None, per_class: int):
        super().__init__()
        self.logit_scale, self.logit_bias, self.per_class = logit_scale, logit_bias, per_class

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        classes_CE = class_embeddings(features["text"], self.per_class)
        return class_logits(features["vision"], classes_CE, self.logit_scale, self.logit_bias)


class ZeroShotBackbone(Backbone):
    """Two towers of which one looks at the inputs and the other at the prompts."""

    fixed = ("text",)

    @property
    def num_classes(self) -> int:
        prompts: Any = self.towers["text"].stem.prompts
        return len(prompts)

    def parts(self, inputs: Inputs) -> Mapping[str, Any]:
        return dict.fromkeys(self.towers, inputs)

    def sample(self) -> Inputs:
        return self.towers["vision"].stem.sample()


def recognises(model: nn.Module) -> bool:
    return isinstance(model, ZeroShotClassifier)


def own_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    return model(inputs)  # type: ignore[no-any-return]


def view(model: Any) -> Backbone:
    inner = family_of(model.model).view(model.model)
    contrast = inner.contrast
    assert isinstance(contrast, Contrast)
    text = inner.towers["text"]
    assert isinstance(text.stem, TokenStem)
    prompted: Any = Prompted(text.stem, model.prompts)
    blocks: Any = list(text.blocks)
    towers = {"vision": inner.towers["vision"], "text": Tower(prompted, blocks, text.readout)}
    joined: Any = PromptContrast(contrast.logit_scale, contrast.logit_bias, model.prompts.shape[1])
    return ZeroShotBackbone(towers, joined)


def origin(model: Any) -> Origin:
    inner = family_of(model.model).origin(model.model)
    loaded = getattr(model.model, "origin", None)
    known = replace(inner, preprocess=loaded.preprocess) if isinstance(loaded, Origin) and loaded.preprocess else inner
    kwargs = {
        "library": known.library,
        "kwargs": known.kwargs,
        "prompts": list(model.prompts.shape),
    }
    return Origin("zero_shot", known.architecture, kwargs, known.preprocess, model.classes)


def build(origin: Origin) -> nn.Module:
    inner = build_model(Origin(origin.kwargs["library"], origin.architecture, origin.kwargs["kwargs"]))
    prompts = torch.zeros(origin.kwargs["prompts"], dtype=torch.int64)
    return ZeroShotClassifier(inner, origin.classes, prompts)


def _longest(ids: Tensor, stem: TokenStem) -> int:
    """Tokens that anything reads."""
    if stem.causal and stem.pool is not None:
        pool = stem._pool(ids)
        assert pool is not None
        return int(pool.max()) + 1
    if stem.hidden_id is not None:
        return int((ids != stem.hidden_id).sum(dim=1).max())
    return ids.shape[1]
