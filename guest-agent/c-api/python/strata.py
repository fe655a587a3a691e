# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Recording events from programs in Python, into the trace of the virtual machine that they run in.

    import strata

    sold = strata.Event("shop:sold", what=str, pieces="u32", flags="hex64")

    sold("bread", 2, 0x10)

Types of fields are those of strata.h: u8 u16 u32 u64 i8 i16 i32 i64, hex8 hex16 hex32 hex64 (shown in hexadecimal), f64
and text; int, bool, float and str stand for i64, u8, f64 and text. Up to eight fields. An event's name is `group:event`.

Where nothing traces, or libstrata.so.1 is not installed, recording does nothing, and error() says why. A value that its
field cannot have, as 300 for a u8, loses the record, and lost() counts it; a text ends at its first NUL. What is wrong
wherever the program runs is an error: an event that cannot be made, or another number of values than of fields.
"""

import ctypes
import operator
import threading

__all__ = ["Event", "connect", "enabled", "error", "flush", "lost"]

_LIBRARY = "libstrata.so.1"
_MOST_FIELDS = 8
_CLASS_USER = 32
_HEX = 0x100
_BITS = (1 << 64) - 1
# The number of each type, and which integers it has: from the first up to below the second; or what else it has.
_UNSIGNED = {f"u{bits}": (code, (0, 1 << bits)) for code, bits in enumerate((8, 16, 32, 64), 1)}
_SIGNED = {f"i{bits}": (code, (-1 << bits - 1, 1 << bits - 1)) for code, bits in enumerate((8, 16, 32, 64), 5)}
_HEXADECIMAL = {f"hex{name[1:]}": (code | _HEX, integers) for name, (code, integers) in _UNSIGNED.items()}
_TEXT = (10, str)
_FLOAT = (12, float)
_NAMED = {**_UNSIGNED, **_SIGNED, **_HEXADECIMAL, "f64": _FLOAT, "text": _TEXT}
_TYPES = {**_NAMED, int: _SIGNED["i64"], bool: (_UNSIGNED["u8"][0], (0, 2)), float: _FLOAT, str: _TEXT}


class _Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_uint32)]


class _EventType(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("field_count", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("fields", ctypes.POINTER(_Field)),
        ("type", ctypes.c_void_p),
    ]


class _Value(ctypes.Union):
    _fields_ = [("integer", ctypes.c_uint64), ("text", ctypes.c_char_p), ("number", ctypes.c_double)]


def _load():
    """The library, twice, and where its mask is; or why it is not there."""
    try:
        # Recording takes less time than handing the interpreter to another thread.
        library = ctypes.PyDLL(_LIBRARY)
        # Connecting, an event's first record and flushing wait for the kernel or for other threads.
        waiting = ctypes.CDLL(_LIBRARY)
        for loaded in library, waiting:
            loaded.strata_record_values.argtypes = [ctypes.POINTER(_EventType), ctypes.POINTER(_Value)]
        library.strata_wanted_word.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64))
        library.strata_error.restype = ctypes.c_char_p
        library.strata_lost.restype = ctypes.c_uint64
        waiting.strata_flush.restype = None
        return library, waiting, library.strata_wanted_word(), None
    except (OSError, AttributeError) as error:
        return None, None, None, f"{_LIBRARY} cannot be used: {error}"


_library, _waiting, _word, _problem = _load()
# The library keeps what it has been given of each.
_events = []
# By threads, each of which counts its own. Not under a lock, which a child made by fork could find held by a thread
# that it lacks, and a signal handler by the thread that it interrupts.
_unusable = {}


class Event:
    """A type of event, made once: it is never freed. Called with a value for each field, it records an event."""

    __slots__ = ("_type", "_pointer", "_fields", "_values", "_kinds", "_is_new")

    def __init__(self, name, /, **fields):
        if len(fields) > _MOST_FIELDS:
            raise ValueError(f"{name}: {len(fields)} fields, {_MOST_FIELDS} at most")
        wrong = next((type_ for type_ in fields.values() if type_ not in _TYPES), None)
        if wrong is not None:
            raise ValueError(f"{name}: no field has the type {wrong!r}: there are int, bool, float, str, "
                             f"{', '.join(_NAMED)}")
        types = [_TYPES[type_] for type_ in fields.values()]
        described = [_Field(field.encode(), code) for field, (code, _) in zip(fields, types)]
        self._fields = (_Field * len(described))(*described)
        self._type = _EventType(ctypes.sizeof(_EventType), len(described), name.encode(), self._fields, None)
        self._pointer = ctypes.pointer(self._type)
        self._values = _Value * len(described)
        self._kinds = tuple(kind for _, kind in types)
        self._is_new = True
        _events.append(self)

    def __call__(self, *values):
        """Records an event; whether it was recorded."""
        if len(values) != len(self._kinds):
            raise TypeError(f"{len(values)} values for an event of {len(self._kinds)} fields")
        if not enabled():
            return False
        made = self._values()
        try:
            for slot, value, kind in zip(made, values, self._kinds):
                if kind is str:
                    # It is kept as long as `made`.
                    slot.text = str(value).encode(errors="replace")
                    continue
                if kind is float:
                    slot.number = value
                    continue
                integer = operator.index(value)
                if not kind[0] <= integer < kind[1]:
                    return _lose()
                slot.integer = integer & _BITS
        except Exception:  # whatever the program's own classes raise
            return _lose()
        if self._is_new:
            self._is_new = False
            return bool(_waiting.strata_record_values(self._pointer, made))
        return bool(_library.strata_record_values(self._pointer, made))


def _lose():
    """Counts a record whose values its fields cannot have."""
    thread = threading.get_ident()
    _unusable[thread] = _unusable.get(thread, 0) + 1
    return False


def enabled():
    """Whether an event recorded now might be kept: what costs something need not be computed otherwise."""
    return _word is not None and _word[0][0] >> _CLASS_USER & 1 == 1


def connect():
    """Connects to the trace now rather than with the first event; whether the process is connected."""
    return _waiting is not None and bool(_waiting.strata_connect())


def error():
    """Why the process is not connected, one line; None if it is."""
    if _library is None:
        return _problem
    text = _library.strata_error()
    return None if text is None else text.decode(errors="replace")


def flush():
    """Hands everything recorded so far to the host, which otherwise comes by in its own time."""
    if _waiting is not None:
        _waiting.strata_flush()


def lost():
    """Records that no ring took, or whose values were not what their fields ask for."""
    return sum(list(_unusable.values())) + (0 if _library is None else _library.strata_lost())
