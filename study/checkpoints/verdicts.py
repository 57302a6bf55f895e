"""What follows from the results: rules that print what was counted. A rule without data is silent."""

from collections.abc import Callable, Iterator

from results import Result, is_safe
from states import ANEW, LOST, REFUSES, WRONG

Cells = dict[str, Result]
Rule = Callable[[Cells], Iterator[str]]
LIED = "said done, and it is not there"
USERS: list[Rule] = []
DEVELOPERS: list[Rule] = []


def advice(cells: Cells, reader: str) -> list[str]:
    """All that the rules for "users" or "developers" say of these cells."""
    crash = {name.removeprefix("crash-"): cell for name, cell in cells.items()
             if name.startswith("crash-") and "kill" in cell}  # fmt: skip
    return [text for rule in (USERS if reader == "users" else DEVELOPERS) for text in rule(crash)]


def for_users(rule: Rule) -> Rule:
    USERS.append(rule)
    return rule


def for_developers(rule: Rule) -> Rule:
    DEVELOPERS.append(rule)
    return rule


def named(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def count(cell: Result, verdict: str, *kinds: str) -> tuple[int, int]:
    """How many of the states of these kinds end in a verdict, and how many there are."""
    seen = [cell[kind] for kind in kinds if kind in cell]
    return sum(each.get(verdict, 0) for each in seen), sum(sum(each.values()) for each in seen)


@for_users
def one_name_loses_both(crash: Cells) -> Iterator[str]:
    """Replacing the only checkpoint in place loses the old one, too."""
    losses = {name: count(cell, LOST, "kill") for name, cell in crash.items()}
    worst = sorted((name for name, (lost, _) in losses.items() if lost),
                   key=lambda name: -losses[name][0] / losses[name][1])  # fmt: skip
    if worst:
        told = ", ".join("`{}` {} of {}".format(name, *losses[name]) for name in worst)
        yield (f"Never save over the only checkpoint in place. A kill in the middle of the save leaves nothing to "
               f"load at so many of its kill points: {told}.")  # fmt: skip


@for_users
def a_person_must_choose(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items() if count(cell, REFUSES, "kill")[0]]
    if names:
        yield (f"{named(names)}: after a kill the newest name cannot be loaded, and the one before it can. A script "
               "that resumes from the newest must try older ones by itself.")  # fmt: skip


@for_users
def safe_engines(crash: Cells) -> Iterator[str]:
    kills = [name for name, cell in crash.items() if is_safe(cell, "kill", "torn", "rank")]
    power = [name for name in kills if is_safe(crash[name], "power")]
    if kills:
        yield (f"Resume by themselves after a kill at any call: {named(kills)}. After a power cut, too: "
               f"{named(power) if power else 'none of them'}.")  # fmt: skip


@for_developers
def ranks_must_agree(crash: Cells) -> Iterator[str]:
    for name, cell in crash.items():
        wrong, of = count(cell, WRONG, "kill", "rank")
        if wrong:
            yield (f"`{name}` loads a mixture of two steps without an error in {wrong} of {of} states. Ranks that "
                   "write into the folder of the step before need one commit for all of them.")  # fmt: skip


@for_developers
def a_rename_needs_a_sync(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items()
             if is_safe(cell, "kill", "torn") and not is_safe(cell, "power")]  # fmt: skip
    if names:
        yield (f"{named(names)}: safe after kills, not after power cuts. Sync a file before it gets its final "
               "name.")  # fmt: skip


@for_developers
def errors_must_be_told(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items() if LIED in cell.get("full", {})]
    if names:
        yield f"{named(names)}: on a full disk the save says that it is done, and nothing can be loaded."


@for_developers
def an_empty_start_is_a_loss(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items() if count(cell, ANEW, "kill", "torn", "power", "full", "rank")[0]]
    if names:
        yield (f"{named(names)}: with what some crashes leave, training starts anew without a word, as if nothing "
               "had been saved.")  # fmt: skip
