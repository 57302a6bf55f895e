"""Plain values that ranks have saved, each its own: which of them a rank takes up.

A scheduler that was fed with a rank's own losses, or an object that counts a rank's own
samples, differs by rank. On as many ranks as have saved, each gets its own back. On another
number of ranks there is no such answer: values that were equal are taken, of others those of
rank 0, and they are named. A rule of spec= decides otherwise, by the path of a value
("tracker.best"):

    "own"    each rank's own; refused on another number of ranks
    "first"  rank 0's, for all
    "equal"  rank 0's too, and named if the ranks' values differ
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from holdfast.torch.values.boxes import Rule, declared, rule_for
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.trees import TYPE


def check_rules(rules: Mapping[str, Rule]) -> None:
    """ValueError, beginning with its pattern, for a word that is no rule."""
    for pattern, rule in rules.items():
        if isinstance(rule, str):
            declared((), rule, pattern)


def rules_inside(key: str, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """The rules, and those for an object or a part of it for all that is in it."""
    inside = {f"{pattern}.*": rule for pattern, rule in rules.items()
              if isinstance(rule, str) and (pattern == key or pattern.startswith(key + "."))}
    return {**rules, **inside}


def choose(path: str, trees: Sequence[Any], mine: int | None, rules: Mapping[str, Rule],
           differing: list[str]) -> Any:
    """What a rank takes of the packed trees that ranks have saved.

    `mine` is the number of this rank's own tree, None if there are other ranks than those
    that saved. Adds to `differing` the paths where ranks disagree and rank 0's value is
    taken. ValueError, with the path, for what is each rank's own.
    """
    rule = rule_for(path, rules)
    if rule == "own" and mine is None:
        raise ValueError(f"{path}: each of {len(trees)} ranks has saved its own, and there are "
                         f'others now; expected as many ranks, or spec={{"{path}": "first"}}')
    if rule == "first" or (rule != "equal" and mine is None and _all_same(trees)
                           and not _has_rules(path, rules)):
        return trees[0]
    if rule not in ("own", "equal") and all(_is_plain_dict(tree) for tree in trees):
        return _choose_inside(path, trees, mine, rules, differing)
    if rule != "equal" and mine is not None:
        return trees[mine]
    if not _all_same(trees):
        differing.append(path)
    return trees[0]


def _choose_inside(path: str, trees: Sequence[dict[Any, Any]], mine: int | None,
                   rules: Mapping[str, Rule], differing: list[str]) -> dict[Any, Any]:
    chosen: dict[Any, Any] = {}
    for key, value in trees[0 if mine is None else mine].items():
        if all(key in tree for tree in trees):
            chosen[key] = choose(_inside(path, key), [tree[key] for tree in trees], mine, rules,
                                 differing)
        else:
            chosen[key] = value
    if mine is None:
        differing += [_inside(path, key) for key in dict.fromkeys(chain(*trees))
                      if not all(key in tree for tree in trees)]
    return chosen


def _inside(path: str, key: Any) -> str:
    return join(path, key if type(key) is str else repr(key))


def _has_rules(path: str, rules: Mapping[str, Rule]) -> bool:
    """True if some rule may be for a part of it."""
    return any(isinstance(rule, str) and (pattern.startswith(path + ".") or "*" in pattern)
               for pattern, rule in rules.items())


def _is_plain_dict(tree: Any) -> bool:
    return isinstance(tree, dict) and TYPE not in tree


def _all_same(trees: Sequence[Any]) -> bool:
    """By their texts: those of a NaN and of another NaN are equal."""
    return all(tree is trees[0] for tree in trees) or len({repr(tree) for tree in trees}) == 1
