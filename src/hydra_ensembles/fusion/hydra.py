"""The hydra: M members as one network. It holds parts of ours only, so it needs no model library to run.

Shapes: B batch, M members, N = M * B, T tokens, D width, C classes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs, State
from hydra_ensembles.backbones.backbone import by_tower
from hydra_ensembles.backbones.parts import Part, rebuild
from hydra_ensembles.backbones.state import repeated
from hydra_ensembles.errors import HydraError
from hydra_ensembles.fusion.grouped import MemberStems
from hydra_ensembles.heads import HeadSet
from hydra_ensembles.store import StoreError, check_tensors, read_store, write_store
from hydra_ensembles.store.hub import fetched, push
from hydra_ensembles.uncertainty import Fitted, FittingError, Prediction, predict, tempered_log_probs


class HydraTower(Part):
    """One encoder of all members. The stem and the first `trunk` blocks run once, then the members branch."""

    facts = ("members", "trunk")

    def __init__(self, members: int, trunk: int, stem: nn.Module, blocks: list[nn.Module], readout: nn.Module):
        super().__init__()
        self.members, self.trunk = members, trunk
        self.stem, self.blocks, self.readout = stem, nn.ModuleList(blocks), readout

    def forward(self, inputs: Inputs, last_block: str) -> Tensor:
        """Logits or features of every member `(M, B, C)`."""
        state: State = self.stem(inputs)
        is_branched = isinstance(self.stem, MemberStems)
        for layer, block in enumerate(self.blocks):
            if layer == self.trunk and not is_branched:
                state, is_branched = repeated(state, self.members), True
            is_read = layer == len(self.blocks) - 1 and last_block == "read"
            state = block(state, self.readout.reads(state) if is_read else None)  # type: ignore[operator]
        if not is_branched:
            state = repeated(state, self.members)
        return self.readout(state).unflatten(0, (self.members, -1))  # type: ignore[no-any-return]


class FusedContrast(Part):
    """Joins the towers of every member: scaled cosine similarities `(M, images, texts)`."""

    def __init__(self, logit_scale_M: Tensor, logit_bias_M: Tensor | None):
        super().__init__()
        self.logit_scale = nn.Parameter(logit_scale_M)
        self.logit_bias = None if logit_bias_M is None else nn.Parameter(logit_bias_M)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        image, text = (F.normalize(features[tower], dim=-1) for tower in ("vision", "text"))
        logits = self.logit_scale.exp()[:, None, None] * (image @ text.transpose(1, 2))
        return logits if self.logit_bias is None else logits + self.logit_bias[:, None, None]


class FusedClasses(Part):
    """Joins the image towers of a zero-shot hydra with each member's class embeddings, a table `(M, C, E)`."""

    def __init__(self, table_MCE: Tensor, contrast: FusedContrast):
        super().__init__()
        self.table = nn.Parameter(table_MCE)
        self.logit_scale, self.logit_bias = contrast.logit_scale, contrast.logit_bias

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        image_MBE = F.normalize(features["vision"], dim=-1)
        logits = self.logit_scale.exp()[:, None, None] * (image_MBE @ self.table.transpose(1, 2))
        return logits if self.logit_bias is None else logits + self.logit_bias[:, None, None]


class Hydra(Part):
    """M members fused into one network; made by `fuse`.

    `hydra(x)` returns log-probabilities of the averaged members `(B, C)`, a drop-in for any classifier;
    `hydra.members(x)` the members' logits `(B, M, C)`; `hydra.predict(x)` a `Prediction` with uncertainty. A fitted
    temperature is part of the first and the last; members' logits are always as the members gave them.
    """

    facts = ("num_members", "mlp", "last_block")

    def __init__(
        self,
        towers: Mapping[str, HydraTower],
        contrast: FusedContrast | FusedClasses | None,
        num_members: int,
        mlp: str,
        last_block: str,
    ):
        super().__init__()
        self.towers, self.contrast = nn.ModuleDict(towers), contrast
        self.num_members, self.mlp, self.last_block = num_members, mlp, last_block
        self.about(heads=[], classes=None, preprocess=None, fitted={})

    def about(
        self,
        heads: list[HeadSet],
        classes: list[str] | None,
        preprocess: dict[str, Any] | None,
        fitted: Mapping[str, Any],
    ) -> None:
        """What the network itself does not need: heads of each member, class names, preprocessing, `Fitted` as JSON."""
        self.heads, self.classes, self.preprocess = heads, classes, preprocess
        self.fitted = Fitted.from_json(fitted)
        self.provenance: dict[str, Any] = {}
        """How it came about, where a run wrote that down; `chosen_with` names OOD data that chose its heads."""

    @property
    def trunk(self) -> dict[str, int]:
        """By tower, the leading blocks that all members share."""
        return {name: tower.trunk for name, tower in self.towers.items()}  # type: ignore[misc]

    @property
    def num_classes(self) -> int | None:
        """How many; None without a classifier, and for two towers that compare images with any texts."""
        if isinstance(self.contrast, FusedClasses):
            return self.contrast.table.shape[1]
        if self.contrast is not None:
            return None
        (tower,) = self.towers.values()
        classifier: Any = tower.readout.classifier  # type: ignore[union-attr]
        return None if classifier is None else int(classifier.out_features)

    @property
    def ends_in_features(self) -> bool:
        """Is there neither a classifier nor a comparison of two towers, whose answers could be judged?"""
        return self.num_classes is None and self.contrast is None

    def members(self, inputs: Inputs) -> Tensor:
        """Every member's logits `(B, M, C)`, in the network's dtype."""
        if self.contrast is None:
            (tower,) = self.towers.values()
            return tower(inputs, self.last_block).transpose(0, 1)  # type: ignore[no-any-return]
        if isinstance(self.contrast, FusedClasses):
            parts: Mapping[str, Any] = dict.fromkeys(self.towers, inputs)
        else:
            parts = by_tower(inputs, dict(self.towers.items()))
        features = {name: tower(parts[name], self.last_block) for name, tower in self.towers.items()}
        return self.contrast(features).transpose(0, 1)  # type: ignore[no-any-return]

    def forward(self, inputs: Inputs) -> Tensor:
        return tempered_log_probs(self.members(inputs), self.fitted.temperature)

    @torch.no_grad()
    def predict(self, inputs: Inputs) -> Prediction:
        """Label, probabilities and uncertainty of each input; a decision where a threshold or a quantile is fitted."""
        if self.ends_in_features:
            raise HydraError("this hydra has no classifier, only features; fuse members that have one")
        return predict(self.members(inputs), self.fitted)

    def save(self, directory: str | Path) -> Path:
        """Write `model.safetensors` and `config.json`; nothing is pickled."""
        if self.classes is not None and self.num_classes not in (None, len(self.classes)):
            raise StoreError(f"the hydra has {self.num_classes} classes, but {len(self.classes)} names for them")
        config = {
            "classes": self.classes,
            "preprocess": self.preprocess,
            "fitted": self.fitted.to_json(),
            "heads": [heads.to_json() for heads in self.heads],
            "provenance": self.provenance,
            "spec": self.spec(),
        }
        return write_store(directory, "hydra", config, self.state_dict())

    @classmethod
    def load(cls, directory: str | Path) -> "Hydra":
        """Read a hydra back, to the bit, in evaluation mode. Needs torch and safetensors, no model library."""
        config, tensors = read_store(directory, "hydra")
        path = Path(directory) / "config.json"
        try:
            hydra = rebuild(config["spec"])
            if not isinstance(hydra, cls):
                raise StoreError(f"{path} describes a {type(hydra).__name__}, not a hydra")
            heads = [HeadSet.from_json(member) for member in config["heads"]]
            hydra.about(heads, config["classes"], config["preprocess"], config["fitted"])
            hydra.provenance = dict(config.get("provenance", {}))
            if hydra.classes is not None and hydra.num_classes not in (None, len(hydra.classes)):
                raise StoreError(f"{path} names {len(hydra.classes)} classes, the hydra has {hydra.num_classes}")
        except (KeyError, TypeError, AttributeError, AssertionError, FittingError) as error:
            raise StoreError(f"{path} does not describe a hydra ({type(error).__name__}: {error})") from None
        check_tensors(directory, tensors, hydra.state_dict())
        hydra.load_state_dict(tensors, assign=True)
        return hydra.eval()

    @classmethod
    def from_pretrained(cls, reference: str | Path, revision: str | None = None, token: str | None = None) -> "Hydra":
        """A hydra from a directory, or from "owner/name" on the Hugging Face hub.

        Args:
            reference: a directory that `save` wrote, or the name of a repository that `push_to_hub` wrote.
            revision: a branch, tag or commit of it.
            token: for private ones; without it, that of `hf auth login`.
        """
        return cls.load(fetched(reference, revision, token))

    def push_to_hub(
        self,
        repo: str,
        card: str | None = None,
        *,
        private: bool = False,
        revision: str | None = None,
        token: str | None = None,
    ) -> str:
        """Share it as "owner/name" on the Hugging Face hub; returns the address of the commit.

        Args:
            repo: made if it is not there.
            card: the model card, as Markdown; `hydra_ensembles.report.model_card(run)` makes one.
            private: for a repository that is new.
            revision: a branch, made if it is not there; without it, the main one.
            token: with the right to write; without it, that of `hf auth login`.
        """
        return push(self.save, repo, card, private=private, revision=revision, token=token)
