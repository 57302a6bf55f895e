"""Every error code becomes the exception that errors.h promises."""

import errno

import pytest

import holdfast
from holdfast._native import _raise_error

EXCEPTIONS = {
    "invalid": ValueError,
    "not_found": holdfast.NotFoundError,
    "corrupt": holdfast.CorruptError,
    "conflict": holdfast.ConflictError,
    "unavailable": holdfast.UnavailableError,
    "timeout": TimeoutError,
    "no_space": OSError,
    "unsupported": NotImplementedError,
    "denied": PermissionError,
    "io": OSError,
}


@pytest.mark.parametrize(("code", "exception"), EXCEPTIONS.items())
def test_a_code_raises_its_exception_with_the_message(code, exception):
    with pytest.raises(exception, match="step-400: it broke; expected it whole") as caught:
        _raise_error(code, "step-400: it broke; expected it whole")
    assert caught.type is exception


def test_a_full_disk_can_be_told_by_its_errno():
    with pytest.raises(OSError) as caught:
        _raise_error("no_space", "runs: 5 bytes free; expected 6")
    assert caught.value.errno == errno.ENOSPC


def test_our_own_exceptions_share_a_base():
    own = [e for e in EXCEPTIONS.values() if e.__module__ == "holdfast.errors"]
    assert len(own) == 4
    assert all(issubclass(e, holdfast.Error) for e in own)


def test_an_unknown_code_is_no_silent_success():
    with pytest.raises(ValueError, match='error code: "nonsense"; expected a known one'):
        _raise_error("nonsense", "")
