"""Texts: token ids by the model's own tokeniser, in batches of like length, padded to the longest of the batch."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydra_ensembles.data.batches import Batch, DataError
from hydra_ensembles.data.order import bucketed, shuffled_buckets
from hydra_ensembles.data.row_batches import RowBatches
from hydra_ensembles.data.rows import Rows, Text
from hydra_ensembles.optional import import_extra
from hydra_ensembles.store import json_digest

_AT_ONCE = 1024
_KEPT_TOKENS = 32 << 20  # token ids of sets up to this size stay in memory, 4 bytes each


class Tokenizer:
    """Texts, or pairs of texts, to token ids of at most `max_tokens`."""

    def __init__(self, preprocess: Mapping[str, Any], max_tokens: int | None = None):
        if not isinstance(preprocess.get("tokenizer"), str):
            raise DataError(f"expected the preprocessing of texts with a 'tokenizer', found {sorted(preprocess)}")
        known = preprocess.get("max_tokens")
        if max_tokens is not None and known is not None and max_tokens > known:
            raise DataError(f"the model takes at most {known} tokens, max_tokens={max_tokens} was asked for")
        self.max_tokens = known if max_tokens is None else max_tokens
        self.pad_id = int(preprocess.get("pad_id", 0))
        self.token_types = bool(preprocess.get("token_types", False))
        # Padding and the length are ours to set, so the file's own are not part of what it is.
        model = {**json.loads(preprocess["tokenizer"]), "padding": None, "truncation": None}
        tokenizers = import_extra("tokenizers", "data", "making texts into tokens")
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(model))
        least = self._tokenizer.num_special_tokens_to_add(False)
        if self.max_tokens is not None and self.max_tokens <= least:
            raise DataError(f"max_tokens={self.max_tokens} leaves nothing of a text; {least} tokens frame it")
        if self.max_tokens is not None:
            self._tokenizer.enable_truncation(self.max_tokens)
        self.digest = json_digest([model, self.settings])

    @property
    def settings(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "pad_id": self.pad_id, "token_types": self.token_types}

    def ids(self, texts: list[Text]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its token ids and token types, of its own length."""
        encoded = self._tokenizer.encode_batch_fast(texts)
        return [(np.array(one.ids, dtype=np.int32), np.array(one.type_ids, dtype=np.int8)) for one in encoded]

    def __call__(self, texts: list[Text]) -> dict[str, Tensor]:
        """Inputs of a model, padded to the longest."""
        return self.padded(self.ids(texts))

    def padded(self, encoded: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Tensor]:
        """Token ids of several texts as one batch."""
        longest = max(1, *(len(ids) for ids, _ in encoded))
        shape = (len(encoded), longest)
        fields = {
            "input_ids": np.full(shape, self.pad_id, dtype=np.int64),
            "attention_mask": np.zeros(shape, dtype=np.int64),
            "token_type_ids": np.zeros(shape, dtype=np.int64),
        }
        for row, (ids, types) in enumerate(encoded):
            fields["input_ids"][row, : len(ids)] = ids
            fields["attention_mask"][row, : len(ids)] = 1
            fields["token_type_ids"][row, : len(ids)] = types
        if not self.token_types:
            del fields["token_type_ids"]
        return {name: torch.from_numpy(field) for name, field in fields.items()}


class TextBatches(RowBatches):
    """Texts in batches of like length. Their lengths are counted in one pass, when they are first asked for."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        rows: Rows,
        labels: Tensor | None,
        batch_size: int = 64,
        shuffle: bool = False,
        seed: int = 0,
    ):
        super().__init__(rows, labels, batch_size, shuffle, seed)
        self.tokenizer = tokenizer

    @property
    def settings(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.digest}

    def plan(self, epoch: int) -> list[np.ndarray]:
        if self.shuffle:
            return shuffled_buckets(self.rows, self.lengths, self.batch_size, self.seed, epoch)
        return bucketed(self.rows, self.lengths, self.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        for places in self.plan(number):
            kept = self._tokens[1]
            encoded = self.tokenizer.ids(self.rows.inputs(places)) if kept is None else [kept[i] for i in places]
            yield Batch(self.tokenizer.padded(encoded), self.labels_at(places))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return self._tokens[0]

    @cached_property
    def _tokens(self) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]] | None]:
        lengths = np.empty(self.num_rows, dtype=np.int32)
        kept: list[tuple[np.ndarray, np.ndarray]] | None = []
        for start in range(0, self.num_rows, _AT_ONCE):
            places = np.arange(start, min(start + _AT_ONCE, self.num_rows))
            encoded = self.tokenizer.ids(self.rows.inputs(places))
            lengths[places] = [len(ids) for ids, _ in encoded]
            if kept is not None:
                kept += encoded
                kept = kept if int(lengths[: places[-1] + 1].sum()) <= _KEPT_TOKENS else None
        return lengths, kept
