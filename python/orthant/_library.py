"""Calls liborthant.so, whose interface is src/library/orthant_c.h. ctypes releases the global lock during a call."""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any

from ._errors import ConfigError, DataError, Error

_ERRORS = {"ConfigError": ConfigError, "DataError": DataError}
_library = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "liborthant.so"))
_ERROR = ctypes.POINTER(ctypes.c_void_p)
for _name in ("orthant_plan", "orthant_search", "orthant_schedule"):
    getattr(_library, _name).argtypes = [ctypes.c_char_p, _ERROR]
    getattr(_library, _name).restype = ctypes.c_void_p
_library.orthant_text.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _ERROR]
_library.orthant_text.restype = ctypes.c_void_p
_library.orthant_free_answer.argtypes = [ctypes.c_void_p]
_library.orthant_free_answer.restype = None
_library.orthant_free_text.argtypes = [ctypes.c_void_p]
_library.orthant_free_text.restype = None
_library.orthant_version.restype = ctypes.c_char_p

VERSION: str = _library.orthant_version().decode()


def _take_text(pointer: int) -> str:
    """Returns a text of the library and frees it. Files that it quotes may hold other bytes than UTF-8."""
    text = ctypes.string_at(pointer).decode("utf-8", "replace")
    _library.orthant_free_text(pointer)
    return text


def _call(function: Any, *arguments: Any) -> int:
    """Calls a function of the library, and raises the error that it returns."""
    error = ctypes.c_void_p()
    result = function(*arguments, ctypes.byref(error))
    if result:
        return int(result)
    if not error.value:
        raise MemoryError("the library has no memory left for the text of an error")
    found = json.loads(_take_text(error.value))
    raise _ERRORS.get(found["type"], Error)(found["message"])


class Answer:
    """An answer of the library: a plan, the result of a search, or a schedule. Its memory is freed with this object."""

    def __init__(self, function: str, request: dict[str, Any]) -> None:
        self._pointer = 0
        self._free = _library.orthant_free_answer
        self._pointer = _call(getattr(_library, function), json.dumps(request).encode())

    def text(self, form: str, **options: Any) -> str:
        """Returns the answer in a form, such as "json"."""
        return _take_text(_call(_library.orthant_text, self._pointer, json.dumps({"form": form, **options}).encode()))

    def __del__(self) -> None:
        if self._pointer:
            self._free(self._pointer)

    def __reduce__(self) -> Any:
        raise TypeError("an answer of Orthant cannot be copied or pickled; keep its to_dict() or run_file() instead")
