"""Label rules, and selectors: ``k==v``, ``k=v``, ``k!=v``, ``k``, ``!k``, ``k in (a,b)``, ``k notin (a,b)``."""

import re
from collections.abc import Callable, Mapping

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:(?P<prefix>[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?)/)?{_PART}")
_VALUE = re.compile(rf"(?:{_PART})?")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)")
_COMMA = re.compile(r",(?![^(]*\))")

Test = Callable[[Mapping[str, str]], bool]


class BadSelectorError(ValueError):
    """It is not in the grammar."""


def problem_with(labels: object) -> str | None:
    """What is wrong with the labels of a request."""
    if not isinstance(labels, dict):
        return "labels must be an object"
    for key, value in labels.items():
        if _KEY.fullmatch(key) is None or key.startswith("hetzner.cloud/"):
            return f"label key {key!r} is not correctly formatted"
        if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
            return f"label value {value!r} is not correctly formatted"
    return None


def selector(text: str) -> Test:
    """The test that a selector stands for."""
    tests = [_term(term.strip()) for term in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def _term(term: str) -> Test:
    if (found := _SET.fullmatch(term)) is not None:
        key = _key(found["key"])
        values = {_value(value.strip()) for value in found["values"].split(",")}
        if found["how"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for sign, wanted in (("!=", False), ("==", True), ("=", True)):
        if sign in term:
            left, _, right = term.partition(sign)
            key, value = _key(left.strip()), _value(right.strip())
            return lambda labels: (labels.get(key) == value) is wanted
    if term.startswith("!"):
        key = _key(term[1:])
        return lambda labels: key not in labels
    key = _key(term)
    return lambda labels: key in labels


def _key(text: str) -> str:
    if _KEY.fullmatch(text) is None:
        raise BadSelectorError(f"label selector key {text!r}")
    return text


def _value(text: str) -> str:
    if _VALUE.fullmatch(text) is None:
        raise BadSelectorError(f"label selector value {text!r}")
    return text
