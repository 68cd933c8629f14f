"""Write to data sets on the Hugging Face hub in single commits. They are read with the hub's fsspec client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.io.retry import retry


def is_hub(address: str) -> bool:
    """Return whether an address is ``hf://datasets/...``."""
    return address.startswith("hf://datasets/")


class HubCommit:
    """A commit to the data set of ``hf://datasets/USER/NAME[@BRANCH][/FOLDER]``; creates a missing data set.

    The hub refuses the commit if somebody else commits after this object was created.
    """

    def __init__(self, address: str) -> None:
        from huggingface_hub import HfApi

        user, _, rest = urlsplit(address).path.strip("/").partition("/")
        name, _, folder = rest.partition("/")
        name, _, branch = name.partition("@")
        if not (user and name):
            raise InvalidArgumentError(
                "the address names no data set", where=address, expected="hf://datasets/USER/NAME"
            )
        self.address = address
        self._folder = f"{folder}/" if folder else ""
        self._api = HfApi()
        self._place: dict[str, Any] = {"repo_id": f"{user}/{name}", "repo_type": "dataset"}
        self._revision = branch or None
        retry(lambda: self._api.create_repo(**self._place, exist_ok=True), where=address)
        info = retry(lambda: self._api.repo_info(**self._place, revision=self._revision), where=address)
        self._parent = info.sha

    def send(self, files: Mapping[str, Path | bytes], deleted: Iterable[str], message: str) -> None:
        """Upload files and delete others, all in one commit. Files that the hub has are not sent again."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        changes: list[Any] = [CommitOperationAdd(self._folder + path, data) for path, data in files.items()]
        changes += [CommitOperationDelete(self._folder + path) for path in deleted]

        def commit() -> None:
            self._api.create_commit(
                **self._place,
                operations=changes,
                commit_message=message,
                revision=self._revision,
                parent_commit=self._parent,
            )

        # The client itself retries uploads. A commit whose answer was lost must not be sent twice.
        retry(commit, where=self.address, attempts=1)
