"""From a dataclass to the command line that fills it in.

A field `seq_len: int = 512` with a docstring is the option `--seq-len INT`, its help and its
default; one that tyro marks as `Positional` takes words without an option. What a value may be is
said once, by the dataclass: a word that cannot be read as the field's type is passed to it as it
stands, so that its error names the rule and the allowed range.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from mlx_pam.cli import near_miss
from mlx_pam.errors import ConfigError
from mlx_pam.paths import expand_home

T = TypeVar("T")

_STYLE = (
    tyro.conf.FlagCreatePairsOff,  # --resume, without --no-resume
    tyro.conf.UseAppendAction,  # --stop A --stop B
    tyro.conf.HelptextFromCommentsOff,
)
_KINDS = {
    int: "a whole number",
    float: "a number",
    Path: "a path, not an empty text or below the home of an unknown user",
}


def parse(
    cls: type[T],
    argv: Sequence[str],
    prog: str,
    description: str,
    once: Mapping[str, str] = types.MappingProxyType({}),
) -> T:
    """An instance of the dataclass `cls` from the words of a command line.

    Of an option that is given twice the last value holds, as in most commands. The options in
    `once` are those where two values look like a combination: they raise, with the reason given.

    `--help` prints the options and exits. Words that make no instance raise a `ConfigError` whose
    first line says what is wrong and whose second is the usage.
    """
    try:
        words = ["--help"] if {"-h", "--help"} & set(argv) else _checked(cls, argv, once)
        record, extra = tyro.cli(
            _without_rules(cls),
            args=words,
            prog=prog,
            description=description,
            config=_STYLE,
            registry=_READERS,
            return_unknown_args=True,
        )
        if extra:
            raise ConfigError(f"unexpected word {extra[0]!r}")
        try:
            return _build(cls, {f.name: getattr(record, f.name) for f in dataclasses.fields(cls)})
        except OSError as error:  # a path that the system does not even look for
            raise ConfigError(f"no path can be {error.filename!r}: {error.strerror}") from error
    except ConfigError as error:
        words = "".join(f" {name.upper()}" for name in _positional(cls))
        usage = f"usage: {prog}{words} [OPTIONS]; `{prog} --help` lists them"
        raise ConfigError(f"{error}\n{usage}") from None


def flag(name: str) -> str:
    """The option that sets a field."""
    return "--" + name.replace("_", "-")


def _positional(cls: type) -> list[str]:
    """Fields that take words without an option."""
    marks = {
        name: getattr(hint, "__metadata__", ())
        for name, hint in get_type_hints(cls, include_extras=True).items()
    }
    return [name for name, marks_of in marks.items() if tyro.conf.Positional in marks_of]


def _checked(cls: type, argv: Sequence[str], once: Mapping[str, str]) -> list[str]:
    """The words, once every option in them exists, has its value, and none is missing.

    A value that begins with a dash, such as a prompt may, is tied to its option by `=`.
    """
    positional = _positional(cls)
    fields = {flag(f.name): f for f in dataclasses.fields(cls) if f.name not in positional}
    checked, given, rest, words = [], set(), [], iter(argv)
    for word in words:
        option, equals, _ = word.partition("=")
        option = option.replace("_", "-")
        if not word.startswith("--"):
            rest.append(word)
            continue
        checked.append(word)
        if option not in fields:
            raise ConfigError(f"there is no option {option!r}{near_miss(option, list(fields))}")
        if option in given and option in once:
            raise ConfigError(f"{option} can be given once: {once[option]}")
        given.add(option)
        if equals or fields[option].type in (bool, "bool"):
            continue
        value = next(words, None)
        if value is None or value in fields:
            raise ConfigError(f"{option} needs a value")
        checked[-1:] = [f"{option}={value}"] if value.startswith("-") else [option, value]
    for option, field in fields.items():
        if option not in given and _is_required(field):
            raise ConfigError(f"{option} is needed")
    return checked + rest


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _without_rules(cls: type[T]) -> type[T]:
    """The same fields, defaults and help, with no check of the values."""
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if field.default is None or field.default is False:
            shown = "(optional)" if field.default is None else "(default: off)"
            hints[field.name] = Annotated[
                hints[field.name], tyro.conf.arg(help_behavior_hint=shown)
            ]
    body = {"__post_init__": lambda _: None, "__annotations__": hints, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), body)


def _build(cls: type[T], values: dict[str, Any]) -> T:
    unread = {name: word for name, value in values.items() if (word := _unread(value)) is not None}
    _require_read({name: word for name, word in unread.items() if word.expected == _KINDS[Path]})
    try:
        instance = cls(**values)
    except ConfigError as error:
        raise ConfigError(_as_typed(str(error), list(values))) from None
    _require_read(unread)
    return instance


def _unread(value: Any) -> _Unread | None:
    words = value if isinstance(value, tuple) else (value,)
    return next((word for word in words if isinstance(word, _Unread)), None)


def _require_read(unread: dict[str, _Unread]) -> None:
    for name, word in unread.items():
        raise ConfigError(f"{flag(name)} must be {word.expected}, got {word!r}")


def _as_typed(text: str, names: list[str]) -> str:
    """The text of an error with the fields in it spelled as options."""
    first = re.match(r"\w+", text)
    spelled = [name for name in names if "_" in name or (first and first[0] == name)]
    for name in spelled:
        text = re.sub(rf"(?<![\w-]){name}\b", flag(name), text, count=1)
    return text


class _Unread(str):
    """A word that is not of its field's type, kept for the error that the dataclass will raise."""

    expected: str


_READERS = ConstructorRegistry()


@_READERS.primitive_rule
def _reader(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How a word becomes a number, a text, a path or one of some choices, each perhaps absent."""
    kind, optional = info.type, False
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not types.NoneType]
        if len(members) != 1 or len(members) == len(get_args(kind)):
            return None
        kind, optional = members[0], True
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        convert, metavar = choices.__getitem__, "{" + ",".join(choices) + "}"
        expected = "one of " + ", ".join(choices)
    elif kind in (int, float, str, Path):
        convert = _path if kind is Path else kind
        metavar = "TEXT" if kind is str else kind.__name__.upper()
        expected = _KINDS.get(kind, "")
    else:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: _read(words[0], convert, optional, expected),
        is_instance=lambda value: optional or value is not None,
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def _path(word: str) -> Path:
    if not word:
        raise ValueError("an empty text names no path")
    return expand_home(word)


def _read(word: str, convert: Callable[[str], Any], optional: bool, expected: str) -> Any:
    if optional and word.lower() == "none":
        return None
    try:
        return convert(word)
    except (KeyError, ValueError):
        unread = _Unread(word)
        unread.expected = expected
        return unread
