"""Which of the plain values that several ranks saved a rank gets back.

A scheduler that was fed with losses of its rank, or an object that counts the samples of its
rank, differs by rank. If there are as many ranks as saved, each gets its own values back. On
another number of ranks, values that were equal are taken, and otherwise those of rank 0, which
the resume report then names. A rule (`layout=Layout(rules=...)`) decides otherwise, by the path of
a value ("tracker.best"):

    "own"    each rank gets its own; refused on another number of ranks
    "first"  all ranks get rank 0's
    "equal"  all ranks get rank 0's, and the report names values that differed
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from holdfast.torch.values.boxes import Rule, part_by_rule, rule_for
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.trees import TYPE


def check_rules(rules: Mapping[str, Rule]) -> None:
    """ValueError, beginning with the pattern, for a word that is no rule."""
    for pattern, rule in rules.items():
        if isinstance(rule, str):
            part_by_rule((), rule, pattern)


def rules_inside(key: str, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """The rules, with each rule for an object or a part of it extended to what is inside."""
    inside = {f"{pattern}.*": rule for pattern, rule in rules.items()
              if isinstance(rule, str) and (pattern == key or pattern.startswith(key + "."))}
    return {**rules, **inside}


def choose_values(path: str, trees: Sequence[Any], mine: int | None, rules: Mapping[str, Rule],
                  differing: list[str]) -> Any:
    """The packed tree that this rank takes of those that the ranks saved.

    `mine` is the index of this rank's own tree, or None if the number of ranks has changed.
    Adds to `differing` the paths where ranks disagree and rank 0's value is taken. ValueError,
    with the path, for a value that a rule calls "own" if `mine` is None.
    """
    rule = rule_for(path, rules)
    if rule == "own" and mine is None:
        raise ValueError(f"{path}: each of {len(trees)} ranks saved its own, and there is another "
                         "number of ranks now; expected as many ranks, or "
                         f'layout=holdfast.Layout(rules={{"{path}": "first"}})')
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
            chosen[key] = choose_values(_inside(path, key), [tree[key] for tree in trees], mine,
                                        rules, differing)
        else:
            chosen[key] = value
    if mine is None:
        differing += [_inside(path, key) for key in dict.fromkeys(chain(*trees))
                      if not all(key in tree for tree in trees)]
    return chosen


def _inside(path: str, key: Any) -> str:
    return join(path, key if type(key) is str else repr(key))


def _has_rules(path: str, rules: Mapping[str, Rule]) -> bool:
    """True if some rule may be for a part of this value."""
    return any(isinstance(rule, str) and (pattern.startswith(path + ".") or "*" in pattern)
               for pattern, rule in rules.items())


def _is_plain_dict(tree: Any) -> bool:
    return isinstance(tree, dict) and TYPE not in tree


def _all_same(trees: Sequence[Any]) -> bool:
    """Compares by texts, so that a NaN equals another NaN."""
    return all(tree is trees[0] for tree in trees) or len({repr(tree) for tree in trees}) == 1
