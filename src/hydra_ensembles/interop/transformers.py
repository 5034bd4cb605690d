"""A hydra in a transformers pipeline: `as_pipeline(hydra)("a photo.jpg")`, as with any model of the hub."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from hydra_ensembles.data.loading import preprocess_of
from hydra_ensembles.data.preparing import prepare
from hydra_ensembles.errors import HydraError
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.optional import import_extra

if TYPE_CHECKING:
    import transformers
else:
    transformers = import_extra("transformers", "text", "a transformers pipeline")


def as_pipeline(hydra: Hydra, **options: Any) -> Any:
    """An image- or text-classification pipeline, by what the hydra takes; `options` are the pipeline's own.

    Scores are the probabilities of the averaged members, at the hydra's temperature where one is fitted.
    """
    if hydra.num_classes is None:
        raise HydraError("a pipeline classifies; this hydra compares images with texts and has no classes")
    options.setdefault("device", next(hydra.parameters()).device)  # else it would be moved to a GPU that is there
    if "tokenizer" in preprocess_of(hydra):
        return _Texts(model=HydraModel(hydra), tokenizer=_Prepared(hydra), **options)
    return _Images(model=HydraModel(hydra), image_processor=_Prepared(hydra), **options)


class HydraModel(transformers.PreTrainedModel):  # type: ignore[misc]
    """A hydra that answers as transformers' classifiers do: `model(**inputs).logits` `(B, C)`, log-probabilities."""

    def __init__(self, hydra: Hydra):
        names = hydra.classes or [f"LABEL_{number}" for number in range(hydra.num_classes or 0)]
        by_number = dict(enumerate(names))
        super().__init__(transformers.PretrainedConfig(id2label=by_number, problem_type="single_label_classification"))
        self.hydra = hydra

    def forward(self, **inputs: Tensor) -> Any:
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.hydra(inputs))


class _Prepared:
    """What a pipeline calls a tokenizer or an image processor; both do what the hydra's own preprocessing says."""

    padding_side = "right"

    def __init__(self, hydra: Hydra):
        self.hydra = hydra
        self.pad_token_id = preprocess_of(hydra).get("pad_id", 0)

    def __call__(self, text: Any = None, text_pair: Any = None, images: Any = None, **_: Any) -> Any:
        if images is not None:
            return transformers.BatchFeature({"pixel_values": prepare(self.hydra, [images])})
        return transformers.BatchEncoding(prepare(self.hydra, [text if text_pair is None else (text, text_pair)]))


class _Images(transformers.ImageClassificationPipeline):  # type: ignore[misc]
    def check_model_type(self, supported_models: Any) -> None:
        """Ours is none of the library's own models."""


class _Texts(transformers.TextClassificationPipeline):  # type: ignore[misc]
    def check_model_type(self, supported_models: Any) -> None:
        """Ours is none of the library's own models."""
