import pytest

from lpld_labels.errors import LabelPoolError, MissingExtraError, extras_required


def test_a_missing_extra_is_named_and_no_other_module() -> None:
    message = r"needs ray, .*pip install 'lpld-labels\[ray\]'"
    with pytest.raises(MissingExtraError, match=message), extras_required():
        raise ModuleNotFoundError("No module named 'ray'", name="ray.util")
    with pytest.raises(ModuleNotFoundError, match="numpi"), extras_required():
        raise ModuleNotFoundError("No module named 'numpi'", name="numpi")


def test_no_field_of_an_error_has_a_password() -> None:
    text = "GET 'https://user:p@ss-word@host/x?token=T0KEN' failed"
    error = LabelPoolError(text, where=text, expected=text, got=text, hint=text)
    assert "ss-word" not in f"{error}{vars(error)}"
    assert "T0KEN" not in f"{error}{vars(error)}"
