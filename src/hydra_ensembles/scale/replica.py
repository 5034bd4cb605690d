"""A replica: holds the model, answers requests in batches, and takes a new model when its directory is replaced."""

import asyncio
import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.data import DataError, ImageTransform, Tokenizer, preprocess_of
from hydra_ensembles.data.batches import inputs_to
from hydra_ensembles.data.loading import classes_of
from hydra_ensembles.errors import HydraError, in_one_line
from hydra_ensembles.evaluation.answers import member_logits, model_digest
from hydra_ensembles.evaluation.loading import load_network
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.store import json_digest
from hydra_ensembles.uncertainty import Fitted, Prediction, predict

LOOK_EVERY_S = 2.0
log = logging.getLogger(__name__)


class Served:
    """A model with what its inputs need."""

    def __init__(self, reference: str, device: str = "cpu"):
        self.model: nn.Module = load_network(reference).eval().to(device)
        self.preprocess = preprocess_of(self.model)
        self.kind = self.preprocess.get("kind", "image" if "mean" in self.preprocess else "text")
        self.classes = classes_of(self.model)
        self.fitted = self.model.fitted if isinstance(self.model, Hydra) else Fitted()
        # All that an answer depends on: another threshold is another model to who reads the answers.
        about = [model_digest(self.model), self.preprocess, self.classes, self.fitted.to_json()]
        self.digest = json_digest(about)
        self.device = torch.device(device)
        if self.kind == "image":
            self.transform = ImageTransform(self.preprocess)
        else:
            self.tokenizer = Tokenizer(self.preprocess)
        # A model that cannot answer is found now, not by the first request.
        (tried,) = self.answer([np.full((8, 8, 3), 128, dtype=np.uint8) if self.kind == "image" else "a"])
        if "unreadable" in tried:
            raise DataError(f"{reference} cannot prepare an image: {tried['unreadable']}")

    @torch.inference_mode()
    def answer(self, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """For each input what is known of it, as JSON; one that cannot be read says so under `unreadable`."""
        found: list[dict[str, Any]] = [{} for _ in inputs]
        if self.kind == "image":
            pixels = []
            for place, content in enumerate(inputs):
                try:
                    pixels.append((place, self.transform(content)))
                except Exception as error:  # whatever Pillow makes of a broken image
                    found[place] = {"unreadable": in_one_line(error)}
            if not pixels:
                return found
            batch: Any = self.transform.normalised(np.stack([one for _, one in pixels]))
            places = [place for place, _ in pixels]
        else:
            batch, places = self.tokenizer(list(inputs)), list(range(len(inputs)))
        said = predict(member_logits(self.model, inputs_to(batch, self.device)), self.fitted)
        for place, one in zip(places, self._as_json(said), strict=True):
            found[place] = one
        return found

    def _as_json(self, said: Prediction) -> list[dict[str, Any]]:
        fields = ("label", "probs", "confidence", "entropy", "aleatoric", "epistemic", "disagreement", "ood_score")
        columns = {name: getattr(said, name).tolist() for name in fields}
        sets = None if said.prediction_set is None else said.prediction_set.tolist()
        found = []
        for row in range(len(said)):
            value = {name: column[row] for name, column in columns.items()}
            if not math.isfinite(value["entropy"]):
                raise HydraError("the model answers with NaN; check its weights and precision")
            uncertainty = {name: value[name] for name in ("entropy", "aleatoric", "disagreement")}
            found.append(
                {
                    "label": value["label"],
                    "class": None if self.classes is None else self.classes[value["label"]],
                    "probability": value["confidence"],
                    "probabilities": value["probs"],
                    "uncertainty": uncertainty | {"mutual_information": value["epistemic"]},
                    "ood_score": value["ood_score"],
                    "prediction_set": None if sets is None else [label for label, held in enumerate(sets[row]) if held],
                    "decision": None if said.decision is None else said.decision[row],
                    "model": self.digest,
                }
            )
        return found


class Replica:
    """What Ray Serve runs, one or more of it; `__call__` takes one input, and is made to collect batches of them."""

    def __init__(self, reference: str, batches: int, device: str = "cpu"):
        self.reference, self.device, self.stamp = reference, device, stamp_of(reference)
        self.served = Served(reference, device)
        # So many batches at once, each with one thread: threads that share a batch wait for each other at every layer.
        self.pool = ThreadPoolExecutor(batches, initializer=torch.set_num_threads, initargs=(1,))
        self.watching: asyncio.Task[None] | None = None

    async def many(self, inputs: list[Any]) -> list[dict[str, Any]]:
        """A batch, in a thread of its own; new requests come in meanwhile."""
        if self.watching is None:
            self.watching = asyncio.create_task(self._watch())
        return await asyncio.get_running_loop().run_in_executor(self.pool, self.served.answer, inputs)

    async def place(self) -> str:
        """Where the model is, for a front that asks whether it may join."""
        return self.reference

    async def _watch(self) -> None:
        """Take the new model once the directory is replaced; a broken one is left alone."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            stamp = self.stamp
            try:
                stamp = stamp_of(self.reference)
                if stamp == self.stamp:
                    continue
                new = await asyncio.to_thread(Served, self.reference, self.device)
                if new.kind != self.served.kind:
                    raise DataError(f"it takes {new.kind}s, the one that is served takes {self.served.kind}s")
            except HydraError as error:
                self.stamp = stamp
                log.error("the new model is not taken: %s", error)
            except Exception:  # whatever a damaged directory, or too little memory, brings: the next look may do better
                log.exception("the new model is not taken")
            else:
                log.info("model %s takes the place of %s", new.digest, self.served.digest)
                self.stamp, self.served = stamp, new


def stamp_of(reference: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of the files of a model directory, drafts aside; nothing for any other reference."""
    directory = Path(expand(reference))
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    whole = [file for file in files if file.is_file() and not file.name.startswith(".")]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in whole]
