"""Fuzz one target with atheris: `python -m tests.trust.fuzz.one TARGET [libFuzzer's options and folders]`."""

import importlib
import sys
import warnings

import atheris


def main() -> None:
    """Instrument the project, then hand over to libFuzzer, which ends the process."""
    name = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["lpld_labels"]):
        targets = importlib.import_module("tests.trust.fuzz.targets")
    target = targets.TARGETS[name]
    for data in target.seeds()[:1]:
        # What is loaded at the first use counts as no input's time.
        targets.tried(target, data)
    atheris.Setup(sys.argv, lambda data: targets.tried(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
