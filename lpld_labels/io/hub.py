"""Write a pool to a data set on the Hugging Face hub, in one commit. Reading uses the hub's fsspec client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lpld_labels.io.retry import retry


def is_hub(address: str) -> bool:
    """Return whether an address is that of a data set on the hub."""
    return address.startswith("hf://datasets/")


class HubCommit:
    """A commit to ``hf://datasets/USER/NAME[@BRANCH][/FOLDER]``. A missing data set is created.

    The hub refuses the commit if somebody else commits after this object was created.
    """

    def __init__(self, address: str) -> None:
        from huggingface_hub import HfApi

        user, _, rest = urlsplit(address).path.strip("/").partition("/")
        name, _, folder = rest.partition("/")
        name, _, branch = name.partition("@")
        self._api, self._where = HfApi(), address
        self._folder = f"{folder}/" if folder else ""
        self._place: dict[str, Any] = {"repo_id": f"{user}/{name}", "repo_type": "dataset"}
        retry(lambda: self._api.create_repo(**self._place, exist_ok=True), where=address)
        self._place["revision"] = branch or None
        self._parent = retry(lambda: self._api.repo_info(**self._place), where=address).sha

    def send(self, files: Mapping[str, Path | bytes], deleted: Iterable[str]) -> None:
        """Upload files and delete others. The hub recognises files that were uploaded before."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        changes: list[Any] = [CommitOperationAdd(self._folder + path, data) for path, data in files.items()]
        changes += [CommitOperationDelete(self._folder + path) for path in deleted]
        facts = {**self._place, "parent_commit": self._parent, "commit_message": "Publish label pool"}
        # The client itself retries uploads. A commit whose response was lost must not be sent twice.
        retry(lambda: self._api.create_commit(operations=changes, **facts), where=self._where, attempts=1)
