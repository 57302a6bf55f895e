"""The objects with a state_dict of a training process, and which saved values each rank gets.

These are the scheduler, the scaler, the average, the data loader, the objects of the user's own,
what an optimizer's own state_dict() adds, and the state of DDP's communication hooks. Rank 0's
values are saved for all ranks; a rank whose values may differ saves its own beside them
(rank_values.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from holdfast import _native
from holdfast.torch.data.loaders import Loaders
from holdfast.torch.state import ddp_comm_hooks
from holdfast.torch.state.buffer_copies import running_statistics
from holdfast.torch.state.ddp_comm_hooks import CommHooks
from holdfast.torch.state.empty_states import EmptyState
from holdfast.torch.state.object_groups import StatefulGroup, as_one_stateful, class_name
from holdfast.torch.state.optimizer_state_dicts import additions_by_key
from holdfast.torch.state.optimizer_states import with_own_states
from holdfast.torch.state.rank_values import check_rules, choose_values, rules_inside
from holdfast.torch.state.stateful import VALUES, Stateful, class_names
from holdfast.torch.values.boxes import Rule, rule_for
from holdfast.torch.values.dotted_names import join, name_a_few


class StatefulObjects:
    """All objects with a state_dict that one process saves, by their keys."""

    def __init__(
        self,
        models: Any,
        optimizers: Sequence[tuple[str, Any]],
        objects: Mapping[str, Any],
        data: Loaders,
        rules: Mapping[str, Rule],
        rank: int,
        world: int,
    ) -> None:
        check_rules(rules)
        self._rules = dict(rules)
        self._rank = rank
        self._world = world
        self.notes: dict[str, str] = {}  # why a restored value may not be the right one, by key
        self.average_statistics = False  # an object keeps running statistics of its own on each rank
        self.average_buffers: set[str] = set()  # the other buffers of modules among the objects
        given = {key: as_one_stateful(key, one) for key, one in objects.items() if one is not None}
        self._kinds = {key: class_names(one) for key, one in given.items()}
        self._optimizer_kinds = {join("optimizer", key): class_name(one)
                                 for key, one in with_own_states(optimizers)}
        self._list = [Stateful(key, one, self._rules_of(key, one, rules))
                      for key, one in given.items()]
        for one in self._list:
            one.empty = None if one.key == VALUES else EmptyState()
        self._data_is_own = data.per_rank
        if data.stateful is not None:
            self._kinds["data"] = data.kinds
            self._list.append(Stateful("data", as_one_stateful("data", data.stateful),
                                       rules_inside("data", self._rules)))
        for name, one in additions_by_key(optimizers).items():
            self._list.append(Stateful(name, one, rules_inside(name, rules)))
            self._list[-1].capture()  # refuses now what could not be stored at a save
        self.comm_hooks = CommHooks(models)
        self.hooks_stateful = Stateful(ddp_comm_hooks.KEY, self.comm_hooks)
        self._may_have_hooks = self.comm_hooks.is_possible

    @property
    def to_save(self) -> list[Stateful]:
        """All of them; without the communication hooks where no module is wrapped in DDP."""
        return self.to_restore if self._may_have_hooks else self.without_hooks

    @property
    def to_restore(self) -> list[Stateful]:
        """All of them: a checkpoint may have communication hooks that this process lacks."""
        return [*self._list, self.hooks_stateful]

    @property
    def without_hooks(self) -> list[Stateful]:
        """All but the communication hooks, which are loaded later than the others."""
        return self._list

    @property
    def keys(self) -> set[str]:
        """The keys of the objects that the user gave, the data loader included."""
        return {one.key for one in self._list if not is_internal(one.key)}

    def kinds(self) -> dict[str, Any]:
        """The classes of optimizers and objects, to be saved and compared at a resume."""
        return {"optimizers": dict(self._optimizer_kinds),
                "kinds": {key: dict(kinds) for key, kinds in self._kinds.items()},
                "empty objects": [one.key for one in self._list
                                  if one.empty is not None and one.empty.loses]}

    def other_optimizers(self, found: _native.SavedStep) -> list[str]:
        """Sentences about optimizers whose class is not the one in the checkpoint."""
        saved = found.objects.get("optimizers", {})
        return [f"{key} is a {saved[key]}; expected a {kind}"
                for key, kind in self._optimizer_kinds.items() if saved.get(key, kind) != kind]

    def other_objects(self, found: _native.SavedStep) -> dict[str, str]:
        """Sentences, by key, about objects whose class is not the one in the checkpoint."""
        saved = found.objects.get("kinds", {})
        return {key: f"{key} is {_words(saved[key])}; expected {_words(kinds)}"
                for key, kinds in self._kinds.items()
                if _short(saved.get(key, kinds)) != _short(kinds)}

    def is_rank_own(self, one: Stateful) -> bool:
        """True if each rank saves this object for itself, as most loaders on several ranks."""
        if one is self.hooks_stateful:
            return True
        if one.key != "data" or self._world == 1:
            return False
        rule = rule_for("data", self._rules)
        return rule == "own" if isinstance(rule, str) else self._data_is_own

    def saves_own_values(self, one: Stateful) -> bool:
        """True if this rank saves the plain values of this object beside those of rank 0."""
        return self._rank > 0 and rule_for(one.key, self._rules) != "first"

    def load(self, one: Stateful, *, keep: bool) -> None:
        """Gives an object its state. A note names what could not be restored as it was."""
        one.load(keep=keep)
        if one.unlike:
            self.notes[one.key] = "; ".join([*filter(None, [self.notes.get(one.key)]), *one.unlike])

    def saved_tree(self, one: Stateful, found: _native.SavedStep) -> Any:
        """The packed values that this rank takes; None if there are none of its class."""
        if one.key in self.other_objects(found):
            return None
        if one.key in found.objects.get("empty objects", ()):
            self.notes[one.key] = (f"{one.key}: its state_dict() was empty when it was saved, so that "
                                   "what it held is lost")
        if is_internal(one.key):
            return self._internal_tree(one, found)
        if not self.is_rank_own(one):
            trees = found.objects.get("things", {})
            if one.key == "data" and "data" not in trees and len(found.rank_objects) > 1:
                raise ValueError(f"data: each of {len(found.rank_objects)} ranks saved a position of "
                                 f"its own, and now there are {self._world} ranks; expected "
                                 "holdfast.data.loader, whose position is the same for all")
            return self._choose(one, trees[one.key], found) if one.key in trees else None
        if len(found.rank_objects) != self._world:
            raise ValueError(f"data: {len(found.rank_objects)} ranks saved its position, and now there "
                             f"are {self._world} ranks; expected as many, or holdfast.data.loader")
        own = found.rank_objects[self._rank].get("things", {})
        return own.get(one.key, found.objects.get("things", {}).get(one.key))

    def _internal_tree(self, one: Stateful, found: _native.SavedStep) -> Any:
        """saved_tree() of an internal object. If the checkpoint lacks it, a note says so."""
        own = [rank.get("things", {}) for rank in found.rank_objects]
        first = found.objects.get("things", {}).get(one.key)
        tree = None
        if one is self.hooks_stateful:
            tree = own[self._rank].get(one.key) if len(own) == self._world else None
        elif first is not None and not self.other_optimizers(found):
            tree = self._choose(one, first, found)
        if tree is None and (one.capture()[0] or any(one.key in saved for saved in own)):
            self.notes[one.key] = (f"{one.key}: the checkpoint has none for this rank of "
                                   f"{self._world}, and it stays as it is")
        return tree

    def _choose(self, one: Stateful, first: Any, found: _native.SavedStep) -> Any:
        """The values for this rank. A note names values that may not be the right ones."""
        trees = [own.get("things", {}).get(one.key, first) for own in found.rank_objects]
        rules = {**self._rules, "data": self._rules.get("data", "equal")}
        unlike: list[str] = []
        mine = self._rank if len(trees) == self._world else None
        chosen = choose_values(one.key, trees, mine, rules, unlike)
        if unlike:
            self.notes[one.key] = (
                f"{name_a_few(unlike)}: the {len(trees)} ranks that saved had different values, "
                "and those of rank 0 are taken")
        return chosen

    def _rules_of(self, key: str, one: Any, rules: Mapping[str, Rule]) -> dict[str, Rule]:
        """The rules inside an object. An average's running statistics are each rank's."""
        if self._world > 1 and isinstance(one, StatefulGroup):
            for name, member in one.members.items():
                rules = self._rules_of(join(key, name), member, rules)
        rules = rules_inside(key, rules)
        if self._world == 1 or not isinstance(one, nn.Module):
            return rules
        running = running_statistics(one)
        self.average_statistics |= bool(running)
        self.average_buffers |= {f"{key}.{name}" for name, _ in one.named_buffers()
                                 if name not in running}
        return {**rules, **{f"{key}.{name}": "own" for name in running}}


def is_internal(key: str) -> bool:
    """True for an object that Holdfast added itself: the keys of the user's have no dot."""
    return "." in key


def _short(kinds: Mapping[str, str]) -> dict[str, str]:
    """Class names without modules: a class may move, as GradScaler did to torch.amp."""
    return {key: kind.rpartition(".")[2] for key, kind in kinds.items()}


def _words(kinds: Mapping[str, str]) -> str:
    return " and ".join(f"a {kind}" for kind in kinds.values()) or "none"
