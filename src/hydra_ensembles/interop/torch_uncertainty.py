"""A hydra in torch-uncertainty's routines, which take the logits of an ensemble behind each other."""

from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.fusion import Hydra


class MemberRows(nn.Module):
    """`(M*B, C)`: the logits of member 0 for every input, then those of member 1, ...

    For `torch_uncertainty.routines.ClassificationRoutine(model=MemberRows(hydra), is_ensemble=True, ...)`. The logits
    are the members' own: a fitted temperature is not part of them.
    """

    def __init__(self, hydra: Hydra):
        super().__init__()
        self.hydra, self.num_estimators = hydra, hydra.num_members

    def forward(self, inputs: Inputs) -> Tensor:
        return self.hydra.members(inputs).transpose(0, 1).flatten(0, 1)
