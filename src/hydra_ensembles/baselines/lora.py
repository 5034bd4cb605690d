"""LoRA ensembles: one encoder, and for each member small low-rank changes of its attention, through peft.

Shapes: B batch, M members, C classes.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.baselines.classifiers import classifier_of, draw_classifier
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.starting import check_layers_are_called, members_of
from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.answers import member_logits
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads import Member
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe, finetune_members
from hydra_ensembles.members.checkpoint import own_randomness
from hydra_ensembles.members.recipes import recipe_named
from hydra_ensembles.members.trainee import Trainee
from hydra_ensembles.optional import import_extra

TARGETS = {"query", "key", "value", "q_lin", "k_lin", "v_lin", "q_proj", "k_proj", "v_proj", "qkv"}
"""What libraries call the linear layers that make queries, keys and values."""


class LoraEnsemble(nn.Module):
    """M members; of each only LoRA matrices of queries, keys and values, and the classifier, are trained.

    After training the matrices are added to the weights they belong to, so a member is an ordinary `Member`.
    """

    def __init__(self, model: nn.Module, members: int = 3, rank: int = 4, alpha: float = 8, seed: int = 0):
        super().__init__()
        self.networks = members_of(model, members, "a LoRA ensemble")
        self.rank, self.alpha = rank, alpha
        for m, network in enumerate(self.networks):
            assert isinstance(network, Member)
            draw_classifier(network, seed + m)

    def fit(
        self,
        train: Data,
        val: Data | None,
        recipe: Recipe | str,
        seeds: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        """Train every member; `options` are those of `finetune_members`, seeds count on from the recipe's.

        A training that fails or is interrupted leaves the members as they were.
        """
        first = recipe_named(recipe).seed
        seeds = range(first, first + len(self.networks)) if seeds is None else seeds
        # Of copies: a member in which peft has put its layers is no longer one that can be read.
        trainees = []
        for network, seed in zip(self.networks, seeds, strict=True):
            assert isinstance(network, Member)
            trainees.append(LoraTrainee(copy.deepcopy(network), self.rank, self.alpha, seed))
        finetune_members(trainees, train, val, recipe, seeds=seeds, **options)
        for network, trainee in zip(self.networks, trainees, strict=True):
            trainee.merge()
            network.load_state_dict(trainee.model.state_dict())
            network.eval()

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every member `(B, M, C)`."""
        return member_logits(list(self.networks), inputs)

    @property
    def adapter_params(self) -> int:
        """The numbers in one member's LoRA matrices, trained or not."""
        return sum(
            self.rank * (layer.in_features + layer.out_features) for layer in _targets(self.networks[0]).values()
        )

    def cost(self, text_tokens: int | None = None) -> Cost:
        """One encoder, M sets of LoRA matrices and M classifiers to store; M networks to run."""
        one, members = network_cost(self.networks[0], self.networks[0], text_tokens), len(self.networks)
        classifier = sum(p.numel() for p in classifier_of(self.networks[0]).parameters())
        return Cost(one.params + members * self.adapter_params + (members - 1) * classifier, members * one.mult_adds)


class LoraTrainee(Trainee):
    """A member with LoRA matrices in it, of which only these and the classifier move."""

    def __init__(self, member: Member, rank: int, alpha: float, seed: int):
        super().__init__(member)  # reads the plain layers; peft then wraps them, and they keep their parameters
        self.rank, self.alpha = rank, alpha
        check_layers_are_called(member.model, "LoRA")
        peft = import_extra("peft", "train", "LoRA ensembles")
        names = sorted({name.rpartition(".")[2] for name in _targets(member)})
        if not names:
            raise BaselineError(
                f"{type(member.model).__name__} has no linear layer called {', '.join(sorted(TARGETS))}"
            )
        settings = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, lora_dropout=0.0, bias="none")
        with own_randomness():
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(settings, member.model)
        for parameter in member.parameters():  # peft freezes all but its own; the recipe decides here
            parameter.requires_grad_(True)

    @property
    def adapters(self) -> dict[str, nn.Parameter]:
        """The LoRA matrices by name."""
        return {name: p for name, p in self.model.named_parameters() if "lora_" in name}

    def settings(self) -> dict[str, Any]:
        """How large the matrices are, and what they are multiplied with."""
        return {**super().settings(), "rank": self.rank, "alpha": self.alpha}

    def trained(self, recipe: Recipe) -> dict[str, nn.Parameter]:
        """The LoRA matrices and the classifier."""
        head = {id(p) for p in self.tower.readout.classifier.parameters()}
        return self.adapters | {name: p for name, p in self.model.named_parameters() if id(p) in head}

    def merge(self) -> None:
        """Add what was learnt to the weights, and take the LoRA layers out."""
        inner = self.model.model
        for path, part in list(inner.named_modules()):  # type: ignore[union-attr]
            if hasattr(part, "get_base_layer") and hasattr(part, "merge"):
                part.merge()
                parent, _, name = path.rpartition(".")
                setattr(inner.get_submodule(parent), name, part.get_base_layer())  # type: ignore[union-attr]


def _targets(network: nn.Module) -> dict[str, nn.Linear]:
    """By path, the linear layers that get LoRA matrices."""
    return {
        path: part
        for path, part in network.named_modules()
        if isinstance(part, nn.Linear) and path.rpartition(".")[2] in TARGETS
    }
