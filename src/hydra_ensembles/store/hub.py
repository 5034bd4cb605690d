"""A store to and from a hub, through huggingface_hub: the two files, and a model card beside them."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra_ensembles.errors import in_one_line
from hydra_ensembles.optional import import_extra
from hydra_ensembles.store.directory import CONFIG, TENSORS, StoreError

CARD = "README.md"


def push(
    save: Callable[[Path], Any],
    repo: str,
    card: str | None = None,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
) -> str:
    """Write a store with `save`, put it into `repo` ("owner/name") in one commit, and return that commit's address."""
    hub = import_extra("huggingface_hub", "hub", "sharing on a hub")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "store"
        save(directory)
        if card is not None:
            (directory / CARD).write_text(card, encoding="utf-8")
        try:
            api = hub.HfApi(token=token)
            api.create_repo(repo, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repo, branch=revision, exist_ok=True)
            done = api.upload_folder(
                repo_id=repo,
                folder_path=directory,
                revision=revision,
                commit_message="A hydra, by hydra-ensembles",
            )
        except Exception as error:
            # Whatever the hub answers, and whatever lies between.
            raise StoreError(f"'{repo}' cannot be written on the hub: {in_one_line(error)}") from error
    return str(done.commit_url)


def fetched(reference: str | Path, revision: str | None = None, token: str | None = None) -> Path:
    """The directory of a store: one on this disk as it is, else that of "owner/name" on the hub, kept in its cache."""
    directory = Path(reference).expanduser()
    if directory.is_dir():
        return directory
    if isinstance(reference, Path) or reference.count("/") != 1 or reference.startswith((".", "~", "/")):
        raise StoreError(f"{reference} is not a directory, and not 'owner/name' on a hub")
    hub = import_extra("huggingface_hub", "hub", "fetching from a hub")
    try:
        return Path(hub.snapshot_download(reference, revision=revision, token=token, allow_patterns=[TENSORS, CONFIG]))
    except Exception as error:
        raise StoreError(f"'{reference}' is not on this disk and cannot be fetched: {in_one_line(error)}") from error
