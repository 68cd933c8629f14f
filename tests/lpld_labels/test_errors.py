from __future__ import annotations

from lpld_labels.errors import LabelPoolError


def test_no_field_of_an_error_has_a_password() -> None:
    text = "GET 'https://user:p@ss-word@host/x?token=T0KEN' failed"
    error = LabelPoolError(text, where=text, expected=text, got=text, hint=text)
    assert "ss-word" not in f"{error}{vars(error)}"
    assert "T0KEN" not in f"{error}{vars(error)}"
