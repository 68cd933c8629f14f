"""Which extra of the package a command wants that finds a module missing."""

from __future__ import annotations

EXTRAS = {
    "torch": "torch",
    "torchvision": "torch",
    "safetensors": "torch",
    "ray": "ray",
    "matplotlib": "demo",
    "mlxtend": "demo",
}
"""Top-level module -> extra of `pyproject.toml` that installs it."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return one line that says what to install; None where the module is of no extra of ours."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    return f"this command needs {module}, which is not installed; pip install 'lpld-labels[{extra}]'"
