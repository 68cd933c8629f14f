"""What someone wants of a codec."""

from __future__ import annotations

from dataclasses import dataclass

from lpld_labels.codecs import Codec, codec_kind
from lpld_labels.codecs.label_semantics import check_temperature
from lpld_labels.errors import InvalidArgumentError

DEFAULT_FIDELITY = 0.97
DEFAULT_TEMPERATURE = 20.0


@dataclass(frozen=True, kw_only=True)
class CodecRequest:
    """A codec by name and, for one that is fitted, what it shall be fitted to.

    name: a spec of `codec_named`, or the name of a codec that is fitted, such as ``klt``.
    fidelity: share of the information to keep at the temperature at which labels will be used.
    budget: bytes of the whole pool, instead of a fidelity. seed: of the sample that the codec is fitted to.
    """

    name: str = "klt"
    fidelity: float | None = None
    temperature: float | None = None
    budget: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind.fitted and self.name != self.kind.name:
            raise InvalidArgumentError(
                f"codec '{self.kind.name}' has nothing after its name", expected=self.kind.name, got=self.name
            )
        if self.fidelity is not None and not 0 < self.fidelity < 1:
            raise InvalidArgumentError(
                "fidelity is wrong", expected="a number between 0 and 1", got=self.fidelity
            )
        if self.temperature is not None:
            check_temperature(self.temperature)
        if self.fidelity is not None and self.budget is not None:
            raise InvalidArgumentError("ask for a fidelity or a budget", got="both")
        if not self.kind.fitted:
            for field in ("fidelity", "budget", "temperature"):
                if getattr(self, field) is not None:
                    raise InvalidArgumentError(
                        f"codec '{self.name}' has no {field}", expected="codec 'klt'", got=self.name
                    )

    @property
    def kind(self) -> type[Codec]:
        """The class of the codec."""
        return codec_kind(self.name)

    def target(self) -> dict[str, float]:
        """Return what to fit to, with defaults, as JSON values; empty for a codec that is not fitted."""
        if not self.kind.fitted:
            return {}
        temperature = DEFAULT_TEMPERATURE if self.temperature is None else self.temperature
        target = {"temperature": temperature, "seed": self.seed}
        if self.budget is not None:
            return {"budget": self.budget, **target}
        return {"fidelity": DEFAULT_FIDELITY if self.fidelity is None else self.fidelity, **target}
