"""What someone wants of a codec."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lpld_labels.codecs import Codec, codec_kind
from lpld_labels.codecs.label_meaning import check_temperature
from lpld_labels.errors import InvalidArgumentError

DEFAULT_FIDELITY = 0.97
DEFAULT_TEMPERATURE = 20.0
DEMANDS = ("fidelity", "bytes_per_row", "step", "budget")


@dataclass(frozen=True, kw_only=True)
class CodecRequest:
    """A codec by name and, for one that is fitted, at most one demand.

    name: a spelling of `codec_named`, or the name of a codec that is fitted, such as ``klt``.
    fidelity: share of the information to keep. bytes_per_row: labels and the codec's tables, without
    views and container. budget: bytes of the whole pool. step: the quantisation step itself.
    temperature: at which the labels will be used, so where they shall be kept best.
    """

    name: str = "klt"
    fidelity: float | None = None
    temperature: float | None = None
    bytes_per_row: float | None = None
    step: float | None = None
    budget: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind.demands and self.name != self.kind.name:
            raise InvalidArgumentError(
                f"codec '{self.kind.name}' has nothing after its name", expected=self.kind.name, got=self.name
            )
        for field, most, expected in (
            ("fidelity", 1.0, "a number between 0 and 1"),
            ("bytes_per_row", math.inf, "a number > 0"),
            ("step", math.inf, "a number > 0"),
        ):
            value = getattr(self, field)
            if value is not None and not 0 < value < most:
                raise InvalidArgumentError(
                    f"{field.replace('_', ' ')} is wrong", expected=expected, got=value
                )
        if self.temperature is not None:
            check_temperature(self.temperature)
        demands = [field for field in DEMANDS if getattr(self, field) is not None]
        if len(demands) > 1:
            raise InvalidArgumentError("ask for one thing at a time", got=" and ".join(demands))
        if demands and demands[0] not in self.kind.demands:
            raise InvalidArgumentError(
                f"codec '{self.name}' cannot be set by {demands[0]}", expected="codec 'klt'", got=self.name
            )
        if self.temperature is not None and (not self.kind.demands or self.step is not None):
            raise InvalidArgumentError("a temperature makes no difference here", got=self.temperature)

    @property
    def kind(self) -> type[Codec]:
        """The class of the codec."""
        return codec_kind(self.name)

    def target(self) -> dict[str, float]:
        """Return the demand, or the default one, as JSON values; empty for a codec that is not fitted."""
        if not self.kind.demands:
            return {}
        if self.step is not None:
            return {"step": self.step, "seed": self.seed}
        target = {
            "temperature": DEFAULT_TEMPERATURE if self.temperature is None else self.temperature,
            "seed": self.seed,
        }
        for field in ("bytes_per_row", "budget"):
            if getattr(self, field) is not None:
                return {field: getattr(self, field), **target}
        return {"fidelity": DEFAULT_FIDELITY if self.fidelity is None else self.fidelity, **target}
