"""The loops of the training program that are running, as they are written in its source."""

import ast
import functools
import linecache
from types import FrameType

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def loops_around(frame: FrameType) -> list[ast.For | ast.While]:
    """The loops of a running function or module that lead to its line, the innermost first.

    A loop counts from its head on. There are none if the source is not there, as for what was typed.
    """
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    node: ast.AST | None = _parse("".join(lines))
    loops: list[ast.For | ast.While] = []
    while node is not None:
        node = next((child for child in ast.iter_child_nodes(node) if _holds(child, frame.f_lineno)), None)
        if isinstance(node, _SCOPES):
            loops = []
        elif isinstance(node, (ast.For, ast.While)):
            loops.insert(0, node)
    return loops


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


@functools.lru_cache(maxsize=4)
def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
