"""Fine-tuning of a member, a plain model or a hydra, by a recipe; killed and started again it ends at the same bits.

Shapes: B batch, M members (1 but for a hydra), C classes.
"""

import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.data import Batch, Batches, Data, as_batches
from hydra_ensembles.data.batches import inputs_to, known_labels, rows_at
from hydra_ensembles.errors import HydraWarning
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.members.checkpoint import (
    delete_checkpoint,
    is_first_process,
    own_randomness,
    random_states,
    read_checkpoint,
    seed_all,
    set_random_states,
    write_checkpoint,
)
from hydra_ensembles.members.history import Evaluation, History, Show, Step, shown
from hydra_ensembles.members.recipes import Diverged, FineTuningError, Recipe, changed, rate_at
from hydra_ensembles.members.trainee import Trainee, as_trainee, plain_attention
from hydra_ensembles.optional import import_extra
from hydra_ensembles.store import tensors_digest
from hydra_ensembles.uncertainty import Fitted

_CALMER = "lower the learning rate, or set warm_up or clip_norm; or the inputs hold what is no number"


def finetune(
    model: nn.Module,
    train: Data,
    val: Data | None,
    recipe: Recipe | str,
    *,
    seed: int | None = None,
    freeze_blocks: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every_s: float = 60.0,
    progress: bool | Show | None = None,
    title: str = "fine-tuning",
) -> History:
    """Fine-tune `model` in place, and leave it in evaluation mode, on the device where it was.

    Args:
        model: a `Member`, a plain model of a supported family, or a `Hydra`, whose loss is the mean of its members'
            losses: each member learns for itself, and what they share learns from all. A hydra has no dropout.
            Or a `Trainee`, which says itself what of it is trained.
        train: inputs with labels `(B,)`; tensors are shuffled by the seed and cut by the recipe's batch size. Batches
            have an order of their own: `load_data(..., shuffle=True, seed=...)`.
        val: for early stopping and the choice of the best weights; without it neither happens.
        recipe: a `Recipe`, or the name of one in `RECIPES`.
        seed: instead of the recipe's; of the order of tensors, and of dropout.
        freeze_blocks: instead of the recipe's; members that share their first k blocks keep them as a trunk.
        checkpoint: a directory for a private checkpoint. If one is there that belongs to the same model, data and
            recipe, training goes on from it, to the same bits. It is deleted when training is done.
        checkpoint_every_s: how often it is written; 0 is every step.
        progress: True for a bar, a function that takes each `Step`, None for a bar on terminals only.
        title: what the bar is called.
    """
    recipe = changed(recipe, seed=seed, freeze_blocks=freeze_blocks)
    trainee = as_trainee(model)
    if getattr(train, "shuffle", True) is False:
        warnings.warn(
            "training goes through these batches in the order of their rows, class by class where they are folders; "
            "load them with shuffle=True",
            HydraWarning,
            stacklevel=2,
        )
    home = next(model.parameters()).device
    with own_randomness(), trainee.set_up(recipe) as trained, torch.enable_grad(), shown(progress, title) as show:
        train, val = prepared(train, val, recipe)
        scratch = None if checkpoint is None else Path(checkpoint).expanduser()
        identity = {} if scratch is None else identity_of(trainee, recipe, train, val)
        training = _Training(trainee, trained, recipe, train, val)
        try:
            training.run(scratch, identity, checkpoint_every_s, show)
        finally:
            model.to(home)
    if scratch is not None and is_first_process():
        delete_checkpoint(scratch)
    if isinstance(model, Hydra) and model.fitted != Fitted():
        model.fitted = Fitted()
        warnings.warn(
            "the hydra has other weights now; temperature, threshold and sets that were fitted before are dropped, "
            "fit them again",
            HydraWarning,
            stacklevel=2,
        )
    return training.history


def prepared(train: Data, val: Data | None, recipe: Recipe) -> tuple[Batches, Batches | None]:
    """The data as batches; draws from the generators of Python, numpy and torch, which it seeds."""
    # Seeded before a DataLoader that shuffles is looked at: it must have one digest in every run.
    seed_all(recipe.seed)
    batches = as_batches(train, recipe.batch_size, shuffle=True, seed=recipe.seed)
    return batches, None if val is None else as_batches(val, recipe.batch_size)


def identity_of(trainee: Trainee, recipe: Recipe, train: Batches, val: Batches | None) -> dict[str, Any]:
    """Everything that the weights after training depend on."""
    return {
        "recipe": recipe.to_json(),
        "training set": train.digest,
        "validation set": None if val is None else val.digest,
        "starting model": tensors_digest(trainee.state_dict().items(), about=json.dumps(trainee.tower.spec())),
        "setting": trainee.settings(),
        "choice of frozen parameters": list(trainee.trained(recipe)),
    }


@dataclass
class _Place:
    """Where a training stands: everything that a resumed one needs besides weights, optimiser and random states."""

    step: int = 0
    epoch: int = 0
    batches_done: int = 0
    """Of this epoch."""
    epoch_random: dict[str, Any] | None = None
    """Random states at the start of this epoch, for loaders that draw their order from them."""
    best_merit: float | None = None
    best_weights: dict[str, Tensor] | None = None
    reference: float | None = None
    """The merit that the next evaluation must surpass by `min_delta`."""
    waited: int = 0


class _Training:
    def __init__(
        self, trainee: Trainee, trained: dict[str, nn.Parameter], recipe: Recipe, train: Batches, val: Batches | None
    ):
        accelerate = import_extra("accelerate", "train", "fine-tuning")
        self.accelerator = accelerate.Accelerator()
        self.device: torch.device = self.accelerator.device
        self.trainee, self.trained, self.recipe, self.train, self.val = trainee, trained, recipe, train, val
        if recipe.zero_head:
            trainee.zero_head()
        groups = trainee.groups(trained, recipe)
        # fused: a quarter of the time on a CPU (torch 2.13, 11 M parameters: 23 ms a step instead of 95).
        optimiser = (
            torch.optim.AdamW(groups, recipe.learning_rate, fused=True)
            if recipe.optimiser == "adamw"
            else torch.optim.SGD(groups, recipe.learning_rate, momentum=recipe.momentum, fused=True)
        )
        # The trainee wraps the model, so that Accelerate changes nothing on the caller's own module.
        self.model, self.optimiser = self.accelerator.prepare(trainee, optimiser)
        self.steps = recipe.steps or len(train) * (recipe.epochs or 0)
        self.place = _Place()
        self.history = History(recipe, sum(p.numel() for p in trained.values()), self.steps)

    def run(self, scratch: Path | None, identity: dict[str, Any], every_s: float, show: Show) -> None:
        """All steps that are left, then the weights to keep."""
        seed_all(self.recipe.seed + self.accelerator.process_index)
        place, history = self.place, self.history
        found = None if scratch is None else read_checkpoint(scratch, identity)
        if found is not None:
            self._restore(found)
        started = written = time.monotonic()
        seconds_before = history.seconds
        while place.step < self.steps and not history.stopped_early:
            for batch in self._rest_of_epoch():
                rate = rate_at(place.step, self.steps, self.recipe)
                history.losses.append(self._update(batch, rate))
                place.step, place.batches_done = place.step + 1, place.batches_done + 1
                evaluation = self._evaluate_if_due()
                history.seconds = seconds_before + time.monotonic() - started
                epoch = place.epoch
                if place.batches_done == len(self.train):
                    place.epoch, place.batches_done = place.epoch + 1, 0
                is_done = place.step == self.steps or history.stopped_early
                if scratch is not None and not is_done and time.monotonic() - written >= every_s:
                    if is_first_process():
                        write_checkpoint(scratch, identity, self._state())
                    written = time.monotonic()
                show(Step(place.step, self.steps, epoch, history.losses[-1], rate, evaluation))
                if is_done or place.batches_done == 0:
                    break
        if not all(bool(parameter.isfinite().all()) for parameter in self.trained.values()):
            raise Diverged(f"weights are no numbers any more after step {place.step}; {_CALMER}")
        if self.recipe.keep == "best" and place.best_weights is not None:
            self._set_weights(place.best_weights)

    def _rest_of_epoch(self) -> Iterator[Batch]:
        """The batches of this epoch that are still to come."""
        place, now = self.place, random_states()
        if place.batches_done == 0:
            place.epoch_random = now
        assert place.epoch_random is not None
        set_random_states(place.epoch_random)
        batches = self.train.epoch(place.epoch)
        for _ in range(place.batches_done):
            next(batches)
        if place.batches_done:
            set_random_states(now)
        return batches

    def _update(self, batch: Batch, rate: float) -> float:
        """One step of the optimiser; returns the loss."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["share"]
        self.model.train()
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        mine = slice(rank, None, ranks)
        with plain_attention(self.device):
            logits_BMC = self._logits(self.model, rows_at(batch.inputs, mine) if ranks > 1 else batch.inputs)
        labels = _labels(batch, logits_BMC.shape[-1])
        targets_BM = labels[mine].to(self.device)[:, None].expand(logits_BMC.shape[:2])
        total = F.cross_entropy(
            logits_BMC.flatten(0, 1),
            targets_BM.flatten(),
            label_smoothing=self.recipe.label_smoothing,
            reduction="sum",
        )
        # Gradients are averaged over processes: each counts its rows as a share of the whole batch.
        loss = total * (ranks / (len(labels) * logits_BMC.shape[1]))
        mean = float(self.accelerator.reduce(loss.detach(), "mean"))
        if not isfinite(mean):
            raise Diverged(f"the loss is {mean} at step {self.place.step} (learning rate {rate:g}); {_CALMER}")
        self.accelerator.backward(loss)
        if self.recipe.clip_norm is not None:
            self.accelerator.clip_grad_norm_(list(self.trained.values()), self.recipe.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return mean

    def _logits(self, model: nn.Module, inputs: Any) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            logits: Tensor = model(inputs_to(inputs, self.device))
        return logits.float() if logits.dtype == torch.bfloat16 else logits

    def _evaluate_if_due(self) -> Evaluation | None:
        """Look at the validation set where the recipe says so, and judge what is seen."""
        place, recipe, history = self.place, self.recipe, self.history
        every = recipe.evaluate_every
        is_due = place.batches_done == len(self.train) if every is None else place.step % every == 0
        if self.val is None or not (is_due or place.step == self.steps):
            return None
        evaluation = self._evaluate(self.val)
        history.evaluations.append(evaluation)
        merit = merit_of(evaluation, recipe)
        if place.best_merit is None or merit > place.best_merit:
            place.best_merit, history.best_step = merit, place.step
            if recipe.keep == "best":
                place.best_weights = {name: p.detach().clone() for name, p in self.trained.items()}
        if place.reference is None or merit > place.reference + recipe.min_delta:
            place.reference, place.waited = merit, 0
        else:
            place.waited += 1
        history.stopped_early = recipe.patience is not None and place.waited >= recipe.patience
        return evaluation

    @torch.no_grad()
    def _evaluate(self, val: Batches) -> Evaluation:
        # Through the trainee itself, as processes may have different numbers of batches.
        self.trainee.eval()
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        for i, batch in enumerate(val):
            if i % self.accelerator.num_processes != self.accelerator.process_index:
                continue
            logits_BMC = self._logits(self.trainee, batch.inputs)
            labels = _labels(batch, logits_BMC.shape[-1]).to(self.device)
            targets = labels[:, None].expand(logits_BMC.shape[:2]).flatten()
            logits = logits_BMC.flatten(0, 1).double()
            right = (logits.argmax(dim=-1) == targets).sum()
            totals += torch.stack(
                [F.cross_entropy(logits, targets, reduction="sum"), right, right.new_tensor(len(targets))]
            )
        nll, right, rows = self.accelerator.reduce(totals, "sum").tolist()
        if not isfinite(nll):
            raise Diverged(f"the loss on the validation set is {nll} at step {self.place.step}; {_CALMER}")
        return Evaluation(self.place.step, nll / rows, right / rows)

    def _state(self) -> dict[str, Any]:
        history = self.history
        return {
            "place": vars(self.place),
            "weights": {name: parameter.detach() for name, parameter in self.trained.items()},
            "optimiser": self.optimiser.state_dict(),
            "random": random_states(),
            "losses": torch.tensor(history.losses, dtype=torch.float64),
            "evaluations": [tuple(found) for found in history.evaluations],
            "best_step": history.best_step,
            "seconds": history.seconds,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        vars(self.place).update(state["place"])
        self._set_weights(state["weights"])
        self.optimiser.load_state_dict(state["optimiser"])
        set_random_states(state["random"])
        self.history.losses = state["losses"].tolist()
        self.history.evaluations = [Evaluation(*found) for found in state["evaluations"]]
        self.history.best_step, self.history.seconds = state["best_step"], state["seconds"]

    def _set_weights(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(weights[name])


def merit_of(evaluation: Evaluation, recipe: Recipe) -> float:
    """Higher is better."""
    return evaluation.accuracy if recipe.stop_on == "accuracy" else -evaluation.nll


def _labels(batch: Batch, classes: int) -> Tensor:
    if batch.labels is None:
        raise FineTuningError("fine-tuning needs labels; give (inputs, labels), or batches that have both")
    return known_labels(batch.labels, classes, FineTuningError)
