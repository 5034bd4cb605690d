"""The working copy of a search: a model that loses its heads one by one, physically, and the data it is asked with.

Shapes: A candidates, B batch, C classes.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs
from hydra_ensembles.backbones.backbone import dtype_of
from hydra_ensembles.data import Batch, Batches, Data, as_batches
from hydra_ensembles.data.batches import inputs_to, rows_of
from hydra_ensembles.errors import HydraWarning
from hydra_ensembles.heads import Head, HeadSet, Member
from hydra_ensembles.scoring.candidates import candidate_logits, tower_features
from hydra_ensembles.scoring.objectives import Outcome, ScoringError, outcome
from hydra_ensembles.scoring.work import Work
from hydra_ensembles.store import tensors_digest

HOLD_BYTES = 2**30
Features: TypeAlias = list[tuple[list[int], Tensor]]
"""Of groups of candidates with their places, as `tower_features` has them."""


def own_copy(model: nn.Module) -> nn.Module:
    """A copy to search with: in evaluation mode, and in fp32 or better."""
    model = copy.deepcopy(model).eval()
    # Differences between heads are smaller than these formats resolve.
    return model.float() if dtype_of(model) in (torch.bfloat16, torch.float16) else model


def digest_of(model: nn.Module) -> str:
    """Of the weights that a search of this model or member works with, as rankings have it in `how["model"]`."""
    inner = model.model if isinstance(model, Member) else model
    half = dtype_of(inner) in (torch.bfloat16, torch.float16)
    tensors = inner.state_dict().items()
    return tensors_digest((name, of.float() if half and of.is_floating_point() else of) for name, of in tensors)


class Working:
    """A copy of a model, in fp32 or better, with the heads that are left numbered as in the backbone it came from."""

    def __init__(self, model: nn.Module):
        self.model = own_copy(model.model if isinstance(model, Member) else model)
        self.backbone = Backbone.of(self.model)
        if self.backbone.ends_in_features:
            raise ScoringError(
                f"{type(self.model).__name__} has no classifier, so no answers to score heads by; build it with the "
                "number of classes"
            )
        self.start: HeadSet = model.heads if isinstance(model, Member) else HeadSet.all(self.backbone)
        self.keep = self.start
        self.device = next(self.model.parameters()).device
        self.work = Work(self.start)
        self._features: dict[tuple[str, int | None], dict[Head | None, Tensor]] = {}
        """By tower and batch, its own and its candidates'; of a tower that does not look at inputs, for no batch."""

    def require_gradients(self) -> None:
        """Of all numbers of the copy; what the caller has frozen stays frozen."""
        for parameter in self.model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())  # prompts of a zero-shot classifier are not

    def remove(self, heads: Iterable[Head]) -> None:
        """Take heads out for good."""
        gone = set(heads)
        left = self.keep.without(gone)
        for tower, layer, block in self.backbone.blocks():
            local = [i for i, head in enumerate(self.keep[tower][layer]) if head in left[tower][layer]]
            if len(local) < len(self.keep[tower][layer]):
                assert block.shrink is not None
                block.shrink(local)
        self.keep = left
        if gone:
            self.backbone = Backbone.of(self.model)
            changed = {head.tower for head in gone}
            self._features = {key: kept for key, kept in self._features.items() if key[0] not in changed}

    def local(self, head: Head) -> Head:
        """The head as the copy numbers it now."""
        return Head(head.tower, head.layer, self.keep[head.tower][head.layer].index(head.index))

    @torch.inference_mode()
    def outcomes(
        self,
        candidates: Sequence[Head],
        batches: Iterable[tuple[int, Batch]],
        companions: Sequence[Sequence[Tensor]] | None = None,
        remember: bool = False,
    ) -> tuple[Outcome, Outcome]:
        """The candidates' outcomes, and that of the copy as it is, on some batches with their places.

        `companions[place]` are log-probabilities of members that answer together with each candidate. `remember` says
        that a place is the same batch whenever it is asked: then a tower that has lost no head since is not run again.
        """
        local = [self.local(head) for head in candidates]
        found, own = [], []
        with torch.autocast(self.device.type, enabled=False):
            known = {name: self._kept(name, None, None, local) for name in self.backbone.fixed}
            # A tower that stands alone loses every head itself.
            is_remembered = remember and self.backbone.contrast is not None
            looking = [name for name in self.backbone.towers if name not in known and is_remembered]
            for place, batch in batches:
                beside = companions[place] if companions else ()
                labels = None if batch.labels is None else batch.labels.to(self.device)
                inputs = inputs_to(batch.inputs, self.device)
                parts = self.backbone.parts(inputs)
                known |= {name: self._kept(name, place, parts[name], local) for name in looking}
                logits_ABC: Tensor | None = None
                for places, logits in candidate_logits(self.backbone, inputs, local, self.work, known):
                    if not places:
                        own.append(outcome(logits, labels, beside))
                        continue
                    if logits_ABC is None:
                        logits_ABC = logits.new_empty(len(local), *logits.shape[1:])
                    logits_ABC[places] = logits
                if logits_ABC is None:
                    logits_ABC = logits.new_empty(0, *logits.shape[1:])
                found.append(outcome(logits_ABC, labels, beside))
        return Outcome.join(found, len(local), self.device), Outcome.join(own, device=self.device)

    def _kept(self, name: str, place: int | None, inputs: Inputs | None, local: Sequence[Head]) -> Features:
        """Features of a tower as `tower_features` has them, each computed once while the tower keeps its heads.

        A race asks for the same candidate several times, and a head that leaves one tower changes nothing in the other.
        """
        kept = dict(self._features.get((name, place), {}))
        missing = [head for head in local if head.tower == name and head not in kept]
        if missing or None not in kept:
            tower = self.backbone.towers[name]
            for places, features in tower_features(name, tower, inputs, missing, self.work):  # type: ignore[arg-type]
                kept |= {missing[m]: one for m, one in zip(places, features, strict=bool(places))}
                if not places:
                    kept[None] = features[0]
            others = [found for key, found in self._features.items() if key != (name, place)]
            size = sum(one.nbytes for found in (kept, *others) for one in found.values())
            if place is None or size <= HOLD_BYTES:  # what is not remembered is computed again
                self._features[name, place] = kept
        own = [([m], kept[head][None]) for m, head in enumerate(local) if head.tower == name]
        return [*own, ([], kept[None][None])]


class SearchData:
    """Known and unknown inputs as one list of batches; unknown batches carry no labels.

    Held in memory if small: a search goes through them once a step, and decoding them each time would cost more than
    the network does.
    """

    def __init__(self, id_data: Data, ood_data: Data | None, batch_size: int):
        self.known = as_batches(id_data, batch_size)
        self.unknown = None if ood_data is None else as_batches(ood_data, batch_size)
        self._held: list[Batch] | None = None
        first = next(iter(self.known))
        if first.labels is None:
            raise ScoringError(
                "the known inputs (id_data=) have no labels; give (inputs, labels), or name their column with label="
            )
        labels = getattr(self.known, "labels", None)
        if isinstance(labels, Tensor) and len(labels) > 1 and len(labels.unique()) == 1:
            warnings.warn(
                f"all known rows have label {int(labels[0])}: heads that matter to other classes look useless; rows of "
                "a folder stand class by class, so draw them (rows.sample) instead of taking the first",
                HydraWarning,
                stacklevel=3,
            )
        size = sum(batches.num_rows for batches in self._parts()) * _bytes_of(first) // max(rows_of(first.inputs), 1)
        if size <= HOLD_BYTES:
            self._held = list(self._stream())

    @property
    def is_held(self) -> bool:
        """Then a place is the same batch whenever it is asked; a loader that is read again may shuffle."""
        return self._held is not None

    @property
    def num_rows(self) -> int:
        """Known and unknown rows together."""
        return sum(batches.num_rows for batches in self._parts())

    @property
    def digests(self) -> dict[str, str | None]:
        """What the data is, for a journal."""
        return {"id_data": self.known.digest, "ood_data": None if self.unknown is None else self.unknown.digest}

    def __iter__(self) -> Iterator[Batch]:
        return self._stream() if self._held is None else iter(self._held)

    def places(self, start: float, end: float) -> list[int]:
        """Which batches, in their order, lie from one share of the known and of the unknown data to another.

        Each share is spread evenly over the data, which may be in the order of its labels or lengths.
        """
        wanted: list[int] = []
        offset = 0
        for batches in self._parts():
            number = len(batches)
            wanted += [offset + place for place in spread(number)[round(start * number) : round(end * number)]]
            offset += number
        return sorted(wanted)

    def part(self, start: float, end: float) -> Iterator[tuple[int, Batch]]:
        """Those batches, with their places."""
        wanted = set(self.places(start, end))
        return ((place, batch) for place, batch in enumerate(self) if place in wanted)

    def _stream(self) -> Iterator[Batch]:
        yield from self.known
        for batch in self.unknown or ():
            yield Batch(batch.inputs, None)

    def _parts(self) -> list[Batches]:
        return [self.known] if self.unknown is None else [self.known, self.unknown]


def spread(number: int) -> list[int]:
    """Places in an order whose beginnings are all spread evenly: by their bits, read backwards.

    >>> spread(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(number - 1, 1).bit_length()
    return sorted(range(number), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))


def _bytes_of(batch: Batch) -> int:
    tensors = [batch.inputs] if isinstance(batch.inputs, Tensor) else batch.inputs.values()
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
