"""What a proxy does to the requests that pass it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Harm = Literal["drop", "cut", "stall", "corrupt", "fail", "deny"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Harm done to some requests.

    harm: "drop" closes the connection instead of an answer, "cut" in the middle of its body, "stall"
        answers nothing for `Behaviour.stall_seconds`, "corrupt" changes a byte of the body, "fail" says 503,
        "deny" 403.
    match, method: to requests whose path and query contain this text, and that are of this method.
    every: to each request of this number among those that match. times: at most so often; None for ever.
    """

    harm: Harm
    every: int = 1
    times: int | None = None
    match: str = ""
    method: str = ""

    def __post_init__(self) -> None:
        if self.harm not in get_args(Harm):
            raise ValueError(self.harm)


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """latency: seconds before each request is passed on. rules: the first that applies is followed.

    bytes_per_second: of all answers together, as over a link of this width; 0 for as fast as it goes.
    """

    latency: float = 0.0
    bytes_per_second: float = 0.0
    stall_seconds: float = 60.0
    rules: Sequence[Rule] = ()

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def parse(data: bytes) -> "Behaviour":
        document: dict[str, Any] = json.loads(data)
        return Behaviour(**{**document, "rules": [Rule(**rule) for rule in document["rules"]]})


@dataclass(kw_only=True)
class Traffic:
    """What has passed. bytes_down, bytes_up: of bodies, to and from the client.

    asked: (method, path and query, range) of every request, in the order of arrival. harmed: how many.
    most_at_once: requests that were under way at the same time.
    """

    requests: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    harmed: int = 0
    most_at_once: int = 0
    asked: list[list[str]] = field(default_factory=list)

    def received(self, size: int) -> None:
        self.bytes_down += size

    def sent(self, size: int) -> None:
        self.bytes_up += size


class Judge:
    """Applies rules to requests as they come."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self._counts = [[0, 0] for _ in behaviour.rules]

    def harm(self, method: str, path: str) -> Harm | None:
        """Return what shall be done to a request."""
        for rule, count in zip(self.behaviour.rules, self._counts, strict=True):
            if rule.match in path and rule.method in ("", method):
                count[0] += 1
                if count[0] % rule.every == 0 and (rule.times is None or count[1] < rule.times):
                    count[1] += 1
                    return rule.harm
        return None
