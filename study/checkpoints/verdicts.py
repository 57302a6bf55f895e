"""What follows from the results: rules that print what was counted. A rule without data is silent."""

from collections.abc import Callable, Iterator
from statistics import median

from measuring.paired import Interval, interval
from results import Result, added, in_milliseconds, in_percent, is_safe, ratios
from states import ANEW, LOST, REFUSES, WRONG

Cells = dict[str, Result]
Rule = Callable[[Cells], Iterator[str]]
LIED = "said done, and it is not there"
TIMED = "resnet50+momentum"  # the state whose times are told
ENOUGH = 0.7  # what an interval covers at least that a rule rests on: that of 3 rounds covers 75 %
SAME_SIZE = 0.01  # of the tensors' bytes: formats whose sizes differ by less hardly differ
USERS: list[tuple[str, Rule]] = []
DEVELOPERS: list[tuple[str, Rule]] = []


def advice(cells: Cells, reader: str) -> list[str]:
    """All that the rules for "users" or "developers" say of these cells."""
    return [text for experiment, rule in (USERS if reader == "users" else DEVELOPERS)
            for text in rule(of_experiment(cells, experiment))]  # fmt: skip


def of_experiment(cells: Cells, experiment: str) -> Cells:
    """Its cells that have figures, by what follows the experiment in their names."""
    return {name.removeprefix(f"{experiment}-"): cell for name, cell in cells.items()
            if name.startswith(f"{experiment}-") and not {"not_run", "failed"} & set(cell)}  # fmt: skip


def for_users(experiment: str) -> Callable[[Rule], Rule]:
    return _adder(USERS, experiment)


def for_developers(experiment: str) -> Callable[[Rule], Rule]:
    return _adder(DEVELOPERS, experiment)


def _adder(rules: list[tuple[str, Rule]], experiment: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        rules.append((experiment, rule))
        return rule

    return add


def says_something(found: Interval) -> bool:
    """Whether a rule may rest on an interval. What was measured once or twice has none."""
    return found.covers >= ENOUGH


def named(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def count(cell: Result, verdict: str, *kinds: str) -> tuple[int, int]:
    """How many of the states of these kinds end in a verdict, and how many there are."""
    seen = [cell[kind] for kind in kinds if kind in cell]
    return sum(each.get(verdict, 0) for each in seen), sum(sum(each.values()) for each in seen)


@for_users("crash")
def one_name_loses_both(crash: Cells) -> Iterator[str]:
    """Replacing the only checkpoint in place loses the old one, too."""
    losses = {name: count(cell, LOST, "kill") for name, cell in crash.items()}
    worst = sorted((name for name, (lost, _) in losses.items() if lost),
                   key=lambda name: -losses[name][0] / losses[name][1])  # fmt: skip
    if worst:
        told = ", ".join("`{}` {} of {}".format(name, *losses[name]) for name in worst)
        yield (f"Never save over the only checkpoint in place. A kill in the middle of the save leaves nothing to "
               f"load at so many of its kill points: {told}.")  # fmt: skip


@for_users("crash")
def a_person_must_choose(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items() if count(cell, REFUSES, "kill")[0]]
    if names:
        yield (f"{named(names)}: after a kill the newest name cannot be loaded, and the one before it can. A script "
               "that resumes from the newest must try older ones by itself.")  # fmt: skip


@for_users("crash")
def safe_engines(crash: Cells) -> Iterator[str]:
    kills = [name for name, cell in crash.items() if is_safe(cell, "kill", "torn", "rank")]
    power = [name for name in kills if is_safe(crash[name], "power")]
    if kills:
        yield (f"Resume by themselves after a kill at any call: {named(kills)}. After a power cut, too: "
               f"{named(power) if power else 'none of them'}.")  # fmt: skip


@for_developers("crash")
def ranks_must_agree(crash: Cells) -> Iterator[str]:
    for name, cell in crash.items():
        wrong, of = count(cell, WRONG, "kill", "rank")
        if wrong:
            yield (f"`{name}` loads a mixture of two steps without an error in {wrong} of {of} states. Ranks that "
                   "write into the folder of the step before need one commit for all of them.")  # fmt: skip


@for_developers("crash")
def a_rename_needs_a_sync(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items()
             if is_safe(cell, "kill", "torn") and not is_safe(cell, "power")]  # fmt: skip
    if names:
        yield (f"{named(names)}: safe after kills, not after power cuts. Sync a file before it gets its final "
               "name.")  # fmt: skip


@for_developers("crash")
def errors_must_be_told(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items() if LIED in cell.get("full", {})]
    if names:
        yield f"{named(names)}: on a full disk the save says that it is done, and nothing can be loaded."


@for_developers("crash")
def an_empty_start_is_a_loss(crash: Cells) -> Iterator[str]:
    names = [name for name, cell in crash.items() if count(cell, ANEW, "kill", "torn", "power", "full", "rank")[0]]
    if names:
        yield (f"{named(names)}: with what some crashes leave, training starts anew without a word, as if nothing "
               "had been saved.")  # fmt: skip


@for_users("cost")
def how_often(cost: Cells) -> Iterator[str]:
    """From which interval on saves take less than 1 % of a training."""
    found = {name: (added(cell["blocks"]["10"]), cell["step"]) for name, cell in cost.items() if "10" in cell["blocks"]}
    told = [f"`{name}` {in_milliseconds(one)}, "
            + (f"every {max(1, round(100 * one.median / step)):,} steps" if says_something(one) and one.low > 0
               else "which is not told from 0")
            for name, (one, step) in sorted(found.items(), key=lambda item: item[1][0].median)]  # fmt: skip
    if told:
        steps = [1e3 * step for _, step in found.values()]
        yield ("What a save of ResNet50 with momentum adds to the training, with its interval, and how often one may save so "
               f"that saves take 1 % of a training whose step is that of this study ({min(steps):.0f} to "
               f"{max(steps):.0f} ms): {'; '.join(told)}.")  # fmt: skip


@for_users("formats")
def turn_deflate_off(formats: Cells) -> Iterator[str]:
    told = []
    for name, cell in formats.items():
        if (found := cell["without"].get("deflate")) and name.endswith(TIMED):
            longer = ratios(found["pairs"])
            if says_something(longer) and longer.low > 1:
                told.append(f"`{name.removesuffix('-' + TIMED)}` {longer} times as long for "
                            f"{100 * (1 - cell['bytes'] / found['bytes']):.0f} % fewer bytes")  # fmt: skip
    if told:
        yield f"Turn deflate off, which is the default: {'; '.join(told)}."


@for_users("formats")
def smallest_and_largest(formats: Cells) -> Iterator[str]:
    beyond = beyond_the_tensors(formats)
    if len(beyond) > 1:
        yield (f"{'Formats differ in size' if sizes_differ(beyond) else 'Formats hardly differ in size'}: beyond the "
               f"tensors, {smallest_to_largest(beyond)}.")  # fmt: skip


def beyond_the_tensors(formats: Cells) -> dict[str, float]:
    """The bytes of each engine beyond those of the tensors, as a share of them."""
    return {name.removesuffix("-" + TIMED): cell["bytes"] / cell["exact"] - 1
            for name, cell in formats.items() if name.endswith(TIMED)}  # fmt: skip


def sizes_differ(beyond: dict[str, float]) -> bool:
    return max(beyond.values()) - min(beyond.values()) > SAME_SIZE


def smallest_to_largest(beyond: dict[str, float]) -> str:
    least, most = min(beyond, key=beyond.__getitem__), max(beyond, key=beyond.__getitem__)
    return f"`{least}` has {100 * beyond[least]:+.2f} % and `{most}` {100 * beyond[most]:+.2f} %"


@for_users("bits")
def who_resumes_exactly(bits: Cells) -> Iterator[str]:
    groups: dict[str, list[str]] = {"also in the middle of an epoch": [], "only at the end of an epoch": [], "never": []}
    for name, cell in bits.items():
        end, middle = (cell["bits"][cut] == "equal" for cut in ("end", "middle"))
        groups[list(groups)[0 if end and middle else 1 if end else 2]].append(name)
    told = "; ".join(f"{word}: {named(names)}" for word, names in groups.items() if names)
    if told:
        yield f"Who resumes with the same bits, {told}. What follows a + was saved besides what the manual names."


@for_users("flips")
def flips_unnoticed(flips: Cells) -> Iterator[str]:
    found = {name: count(cell, WRONG, "tensors") for name, cell in flips.items()}
    told = ", ".join("`{}` {} of {}".format(name, *both) for name, both in found.items() if both[0])
    if told:
        yield f"Keep digests of your own beside these: a flipped bit of a tensor is loaded without an error, {told}."
    good = [name for name, (wrong, of) in found.items() if of and not wrong]
    if good:
        yield f"Every flipped bit of a tensor is noticed by {named(good)}."


@for_users("restart")
def restart_takes(restart: Cells) -> Iterator[str]:
    told = []
    for name, cell in restart.items():
        parts = {part: median(values) for part, values in cell["seconds"].items()}
        longest = max(parts, key=parts.__getitem__)
        total = interval([sum(each) for each in zip(*cell["seconds"].values(), strict=True)])
        told.append(f"`{name}` {total} s, of which {longest} {interval(cell['seconds'][longest])} s")
    if told:
        yield f"From the start of a new process to its first step: {'; '.join(told)}."


def shares(formats: Cells) -> dict[str, Interval]:
    """What leaving out a part of the work spares of a save, by engine and part."""
    return {f"`{name.removesuffix('-' + TIMED)}`: {part}": interval([1 - less / whole for whole, less in found["pairs"]])
            for name, cell in formats.items() if name.endswith(TIMED) for part, found in cell["without"].items()}


@for_developers("formats")
def bottlenecks(formats: Cells) -> Iterator[str]:
    """What a part of the work takes of a save, found by leaving it out."""
    takes: list[str] = []
    spares: list[str] = []
    unclear: list[str] = []
    for words, share in shares(formats).items():
        if not says_something(share) or share.low <= 0 <= share.high:
            unclear.append(words)
        elif share.low > 0:
            takes.append(f"{words} {in_percent(share)}")
        else:
            spares.append(f"{words}, {Interval(1 - share.median, 1 - share.high, 1 - share.low, share.covers)} times")
    if takes:
        yield f"What a part of the work takes of a save, found by leaving it out. {'; '.join(takes)}."
    if spares:
        yield f"Without it, a save takes longer. {'; '.join(spares)}."
    if unclear:
        yield f"Whether leaving it out makes a save shorter is not decided by these figures. {'; '.join(unclear)}."


@for_developers("formats")
def memory_of_a_save(formats: Cells) -> Iterator[str]:
    names = [f"`{name.removesuffix('-' + TIMED)}` {cell['memory']['save'] / cell['exact']:.1f}"
             for name, cell in formats.items()
             if name.endswith(TIMED) and cell["memory"]["save"] > 0.5 * cell["exact"]]  # fmt: skip
    if names:
        yield f"A save need not copy the state. At their peak, these need so many times its bytes: {', '.join(names)}."


@for_developers("bits")
def what_must_be_saved(bits: Cells) -> Iterator[str]:
    """A way that becomes equal once more is saved says what its framework leaves out."""
    for name, cell in bits.items():
        for other, more in bits.items():
            if other.rpartition("+")[0] == name and more["bits"] != cell["bits"]:
                better = [cut for cut, word in more["bits"].items() if word == "equal" != cell["bits"][cut]]
                if better:
                    yield (f"`{name}` resumes exactly at the {' and the '.join(better)} of an epoch once it also saves "
                           f"the {other.rpartition('+')[2]}: a framework knows it, and could save it.")  # fmt: skip


@for_developers("scale")
def what_scale_costs(scale: Cells) -> Iterator[str]:
    for name, cell in scale.items():
        first, last = list(cell["ranks"])[0], list(cell["ranks"])[-1]
        if first == last:
            continue
        one, many = cell["ranks"][first], cell["ranks"][last]
        yield (f"`{name}`: from {first} to {last} ranks, a save writes {grows(one, many)}.")


def grows(one: Result, many: Result) -> str:
    """ "4.0 times the bytes in 4 files instead of 1" """
    return (f"{many['bytes'] / one['bytes']:.1f} times the bytes in {many['files']} file{'s' * (many['files'] > 1)} "
            f"instead of {one['files']}")  # fmt: skip


def claims(cells: Cells) -> Iterator[tuple[list[str], str]]:
    """What the original study asked, in the words of docs/studies/papers.md, and what we found; "not measured" if nothing."""
    asked = [("cost", "the frameworks differ critically in what a checkpoint costs", _cost_claim),
             ("formats", "formats and file sizes differ", _formats_claim),
             ("scale", "scale changes the cost", _scale_claim), ("bits", "deterministic restart needs care", _bits_claim),
             ("formats", "implementations have bottlenecks", _bottleneck_claim)]  # fmt: skip
    for experiment, claim, tell in asked:
        found = of_experiment(cells, experiment)
        verdict = tell(found) if found else "not measured on this machine"
        yield [claim, f"`make study`, cells `{experiment}-*`", "– (axis: A)"], verdict


def _cost_claim(cost: Cells) -> str:
    found = sorted((added(cell["blocks"]["10"]), name) for name, cell in cost.items())
    (least, first), (most, last) = found[0], found[-1]
    told = f"a save of 204.7 MB adds {in_milliseconds(least)} with `{first}` and {in_milliseconds(most)} with `{last}`"
    are_told = says_something(least) and says_something(most)
    return f"**{_decided(are_told and most.low > 2 * least.high, are_told and most.high < 2 * least.low)}**: {told}"


def _decided(is_so: bool, is_not: bool) -> str:
    return "yes" if is_so else "no" if is_not else "undecided"


def _formats_claim(formats: Cells) -> str:
    beyond = beyond_the_tensors(formats)
    if not beyond:
        return "not measured on this machine"
    return f"**{_decided(sizes_differ(beyond), not sizes_differ(beyond))}**: beyond the same tensors, {smallest_to_largest(beyond)}"


def _bottleneck_claim(formats: Cells) -> str:
    takes = shares(formats)
    if not takes:
        return "not measured on this machine"
    great = {words: share for words, share in takes.items() if says_something(share) and share.low > 0}
    least, most = (pick(great, key=lambda words: great[words].median) if great else "" for pick in (min, max))
    told = f": a part of the work takes {in_percent(great[least])} ({least}) to {in_percent(great[most])} ({most}) of a save" if great else ""
    return f"**{_decided(bool(great), False)}**{told}"


def _scale_claim(scale: Cells) -> str:
    """By bytes and files: times of ranks that share cores say nothing."""
    last = max((list(cell["ranks"])[-1] for cell in scale.values()), key=int, default="")
    both = {name: (cell["ranks"]["1"], cell["ranks"][last]) for name, cell in scale.items()
            if {"1", last} <= set(cell["ranks"])}  # fmt: skip
    if not both:
        return "not measured on this machine"
    factors = {name: many["bytes"] / one["bytes"] for name, (one, many) in both.items()}
    files = {name: many["files"] for name, (_, many) in both.items()}
    most, many_files = max(factors.values()), max(files, key=files.__getitem__)
    more = most > 1.5
    return (f"**{_decided(more, not more)}**, in bytes: with {last} ranks instead of 1, a save writes {min(factors.values()):.1f} to "
            f"{most:.1f} times as many"
            + (f", the most with {named([name for name, one in factors.items() if one > 0.95 * most])}" if more else "")
            + f"; at most {files[many_files]} files (`{many_files}`)")  # fmt: skip


def _bits_claim(bits: Cells) -> str:
    good = [name for name, cell in bits.items() if set(cell["bits"].values()) == {"equal"}]
    return (f"**yes**: {len(good)} of {len(bits)} ways resume with the same bits wherever they are stopped"
            + (f": {named(good)}" if good else ""))  # fmt: skip
