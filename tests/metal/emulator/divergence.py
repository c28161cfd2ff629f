"""Barriers and simdgroup operations that only some threads may reach, found without running.

Every value has a level: equal in all threads of a threadgroup, in those of a simdgroup, or in
none. Levels follow assignments, calls and conditions; what stands under a condition is reached by
the threads that agree on it. Memory counts as equal for all: what one thread reads at an address,
every thread would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clang.cindex import Cursor, CursorKind, TokenKind

THREADGROUP, SIMDGROUP, THREAD = range(3)  # equal in all threads of ..., or differing by thread
ATTRIBUTES = {
    "thread_index_in_simdgroup": THREAD,
    "thread_index_in_quadgroup": THREAD,
    "thread_index_in_threadgroup": THREAD,
    "thread_position_in_threadgroup": THREAD,
    "thread_position_in_grid": THREAD,
    "quadgroup_index_in_threadgroup": THREAD,
    "simdgroup_index_in_threadgroup": SIMDGROUP,
}
UNIFYING = {  # whose results are the same in all threads of a simdgroup
    "simd_sum", "simd_product", "simd_max", "simd_min", "simd_any", "simd_all", "simd_and",
    "simd_or", "simd_xor", "simd_broadcast", "simd_broadcast_first",
}  # fmt: skip
FUNCTIONS = (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE)
LOOPS = (CursorKind.FOR_STMT, CursorKind.WHILE_STMT, CursorKind.DO_STMT)
WRITES = (CursorKind.COMPOUND_ASSIGNMENT_OPERATOR, CursorKind.UNARY_OPERATOR)


def divergent_barriers(own: list[Cursor]) -> Iterator[tuple[str, str, int]]:
    """(rule, message, line) of each, in a source's own declarations; the kernel is the last."""
    functions = {c.spelling: c for c in own if c.kind in FUNCTIONS and _body(c)}
    *_, kernel = functions.values()
    analysis = _Analysis(functions)
    for parameter in _parameters(kernel):
        analysis.raise_to(parameter, ATTRIBUTES.get(parameter.spelling, THREADGROUP))
    analysis.function(kernel, THREADGROUP)
    yield from dict.fromkeys(analysis.found)


@dataclass
class _Jumps:
    """The levels of the conditions under which threads leave."""

    function: int = THREADGROUP
    loop: int = THREADGROUP
    round: int = THREADGROUP

    def add(self, other: _Jumps) -> None:
        self.function = max(self.function, other.function)
        self.loop = max(self.loop, other.loop)
        self.round = max(self.round, other.round)

    @property
    def highest(self) -> int:
        return max(self.function, self.loop, self.round)


@dataclass
class _Analysis:
    functions: dict[str, Cursor]
    levels: dict[int, int] = field(default_factory=dict)  # of a declaration, by its hash
    found: list[tuple[str, str, int]] = field(default_factory=list)
    done: set[tuple[str, int, tuple[int, ...]]] = field(default_factory=set)
    changed: bool = False

    def function(self, function: Cursor, control: int) -> None:
        """Its body, until the levels of its variables rise no further."""
        arguments = tuple(self.levels.get(p.hash, 0) for p in _parameters(function))
        key = (function.spelling, control, arguments)
        if key in self.done:
            return
        self.done.add(key)
        while True:
            before = dict(self.levels)
            self.statement(_body(function), control)
            if before == self.levels:
                return

    def raise_to(self, declaration: Cursor, level: int) -> None:
        self.levels[declaration.hash] = max(level, self.levels.get(declaration.hash, 0))

    def level(self, expression: Cursor) -> int:
        if expression.kind == CursorKind.DECL_REF_EXPR:
            declared = expression.referenced
            return self.levels.get(declared.hash, 0) if declared else 0
        level = max(map(self.level, expression.get_children()), default=THREADGROUP)
        if expression.kind == CursorKind.CALL_EXPR and _called(expression) in UNIFYING:
            return min(level, SIMDGROUP)
        return level

    def statement(self, cursor: Cursor, control: int) -> _Jumps:
        """A statement or expression that is reached under conditions of level `control`."""
        kind, children = cursor.kind, list(cursor.get_children())
        if kind in (CursorKind.IF_STMT, CursorKind.CONDITIONAL_OPERATOR, CursorKind.SWITCH_STMT):
            return self.branches(children, control)
        if kind in LOOPS:
            return self.loop(cursor, children, control)
        if kind == CursorKind.RETURN_STMT:
            self.all(children, control)
            return _Jumps(function=control)
        if kind == CursorKind.BREAK_STMT:
            return _Jumps(loop=control)
        if kind == CursorKind.CONTINUE_STMT:
            return _Jumps(round=control)
        if kind == CursorKind.VAR_DECL:
            self.raise_to(cursor, max(map(self.level, children), default=THREADGROUP))
        elif kind in WRITES or (kind == CursorKind.BINARY_OPERATOR and _assigns(cursor)):
            target = _variable(children[0])
            if target is not None:
                self.raise_to(target, max(control, *map(self.level, children)))
        elif kind == CursorKind.CALL_EXPR:
            self.call(cursor, control)
        return self.all(children, control)

    def all(self, statements: list[Cursor], control: int) -> _Jumps:
        """One after another: those after a jump are reached by whoever did not take it."""
        jumps = _Jumps()
        for statement in statements:
            jumps.add(self.statement(statement, max(control, jumps.highest)))
        return jumps

    def branches(self, children: list[Cursor], control: int) -> _Jumps:
        condition, *parts = children
        self.statement(condition, control)
        inside = max(control, self.level(condition))
        jumps = _Jumps()
        for part in parts:
            jumps.add(self.statement(part, inside))
        return jumps

    def loop(self, cursor: Cursor, children: list[Cursor], control: int) -> _Jumps:
        body = children.pop(0 if cursor.kind == CursorKind.DO_STMT else -1)
        self.all(children, control)
        inside = max([control, *map(self.level, children)])
        jumps = self.statement(body, inside)
        again = max(inside, jumps.loop, jumps.function)
        if again > inside:
            jumps = self.statement(body, again)
        return _Jumps(function=jumps.function)

    def call(self, cursor: Cursor, control: int) -> None:
        name, arguments = _called(cursor), list(cursor.get_arguments())
        line = cursor.location.line
        if name == "threadgroup_barrier" and control > THREADGROUP:
            message = "a threadgroup_barrier that not all threads of the threadgroup may reach"
            self.found.append(("divergent barrier", message, line))
        elif name.startswith(("simd_", "simdgroup_")) and control > SIMDGROUP:
            message = f"a {name} that not all threads of the simdgroup may reach"
            self.found.append(("divergent simdgroup", message, line))
        if name not in self.functions:
            return
        function = self.functions[name]
        levels = [self.level(argument) for argument in arguments]
        for parameter, argument, level in zip(
            _parameters(function), arguments, levels, strict=False
        ):
            self.raise_to(parameter, level)
            if "__private" in parameter.type.spelling and "&" in parameter.type.spelling:
                target = _variable(argument)  # that the function may write
                if target is not None and "const" not in parameter.type.spelling:
                    self.raise_to(target, max(control, *levels))
        self.function(function, control)


def _body(function: Cursor) -> Cursor | None:
    parts = [c for c in function.get_children() if c.kind == CursorKind.COMPOUND_STMT]
    return parts[-1] if parts else None


def _parameters(function: Cursor) -> list[Cursor]:
    return [c for c in function.get_children() if c.kind == CursorKind.PARM_DECL]


def _called(call: Cursor) -> str:
    """The name of a function; in a template clang may not yet know which it is."""
    if call.spelling:
        return call.spelling
    return next((child.spelling for child in call.get_children()), "")


def _variable(target: Cursor) -> Cursor | None:
    """`x` of x, x.y and x[i]; None for what lies in memory that threads share."""
    while target.kind != CursorKind.DECL_REF_EXPR:
        parts = list(target.get_children())
        if not parts:
            return None
        target = parts[0]
    declared = target.referenced
    shared = declared is None or any(
        space in declared.type.spelling for space in ("__local", "__global")
    )
    return None if shared else declared


def _assigns(operator: Cursor) -> bool:
    """Whether a binary operator is `=`: the first sign after its left side that closes nothing."""
    end = next(operator.get_children()).extent.end.offset
    signs = (
        token.spelling
        for token in operator.get_tokens()
        if token.kind == TokenKind.PUNCTUATION and token.extent.start.offset >= end
    )
    return next((sign for sign in signs if sign not in (")", "]")), "") == "="
