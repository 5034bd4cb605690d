"""A hydra in OpenOOD's evaluation: a postprocessor in its shape, without a dependency on it."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.errors import HydraError
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.uncertainty import tempered_log_probs
from hydra_ensembles.uncertainty.decisions import check_choice, ood_scores
from hydra_ensembles.uncertainty.known_rows import finest

if TYPE_CHECKING:
    BasePostprocessor = object
else:
    try:  # its evaluators take nothing else
        from openood.postprocessors import BasePostprocessor
    except ModuleNotFoundError:
        BasePostprocessor = object


class HydraPostprocessor(BasePostprocessor):
    """What OpenOOD asks of a postprocessor: `setup`, `postprocess`, `inference`.

    Its confidences are higher for known inputs, ours (scores) for unknown ones: they are the negative score. The net
    that OpenOOD hands over is the hydra itself. `processor(images)` gives labels and confidences without OpenOOD.
    """

    def __init__(self, hydra: Hydra, score: str = "msp"):
        check_choice(score, accept=1.0)
        self.hydra, self.score = hydra, score
        self.APS_mode = False
        """OpenOOD searches no settings of this one."""

    def setup(self, net: nn.Module, id_loader_dict: Any, ood_loader_dict: Any) -> None:
        """Nothing is fitted."""

    @torch.no_grad()
    def postprocess(self, net: nn.Module | Callable[..., Any], data: Inputs) -> tuple[Tensor, Tensor]:
        """Labels and confidences `(B,)`."""
        if net is not self.hydra:
            raise HydraError("this postprocessor asks its own hydra; give the same one to OpenOOD as net")
        logits_BMC, temperature = self.hydra.members(data), self.hydra.fitted.temperature
        label = tempered_log_probs(logits_BMC, temperature).argmax(dim=-1)
        return label, -ood_scores(self.score, finest(logits_BMC), temperature)

    def __call__(self, data: Inputs) -> tuple[Tensor, Tensor]:
        return self.postprocess(self.hydra, data)

    def inference(
        self, net: nn.Module, data_loader: Iterable[Mapping[str, Any]], progress: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels said, confidences and true labels of a whole loader of `{"data", "label"}`."""
        device = next(self.hydra.parameters()).device
        said, confidences, labels = [], [], []
        for batch in data_loader:
            label, confidence = self.postprocess(net, batch["data"].to(device))
            said.append(label.cpu().numpy())
            confidences.append(confidence.cpu().numpy())
            labels.append(np.asarray(batch["label"]))
        return np.concatenate(said).astype(int), np.concatenate(confidences), np.concatenate(labels).astype(int)
