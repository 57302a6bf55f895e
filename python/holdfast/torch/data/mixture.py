"""Several datasets read together in fixed shares: `holdfast.data.mix`."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast._native import Mixture
from holdfast._native import Sequence as Order
from holdfast.corpus import Files
from holdfast.torch.data.fingerprint import fingerprint_of

MOST_WEIGHT = 1_000_000  # of a Mixture


def mix(sources: Mapping[str, tuple[Any, int]]) -> "Mixed":
    """Datasets that a loader reads together: of each, so many samples as its weight says.

        both = holdfast.data.mix({"c4": (corpus, 7), "books": (books, 3)})
        loader = holdfast.data.loader(both, 256, seed=0)

    Weights are whole numbers. Among any 10 samples that follow each other, here 7 are of c4, in a
    pattern that the seed shuffles; (70, 30) is shuffled over 100. Each source is shuffled anew in
    each of its own epochs, so the loader has none: its `epochs` is None. If weights are others when
    a run is resumed, they count from there on, and no sample of any source is skipped or repeated.
    The names and datasets must stay; the weight 0 leaves one out for a while.
    """
    return Mixed(sources)


class Mixed:
    """What mix() returns: a dataset for loader(). Its samples are those of all sources."""

    def __init__(self, sources: Mapping[str, tuple[Any, int]]) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise TypeError(f"mix: {type(sources).__name__}; expected a dict of names, each with "
                            "(dataset, weight)")
        for name, pair in sources.items():
            _check(name, pair)
        self.names = list(sources)
        self.datasets = [dataset for dataset, _ in sources.values()]
        self.weights = [int(weight) for _, weight in sources.values()]
        self._firsts = [0]
        for dataset in self.datasets:
            self._firsts.append(self._firsts[-1] + len(dataset))
        # Where the loaders look for it (fingerprint.py). Weights may change, so they do not count.
        self._fingerprint = " ".join(f"{name}={fingerprint_of(dataset)}" for name, dataset
                                     in zip(self.names, self.datasets, strict=True))
        # A dataset that reads one at a time is seeded for each sample, so it is asked for each.
        if all(hasattr(dataset, "__getitems__") for dataset in self.datasets):
            self.__getitems__ = self._read_together

    @property
    def draws(self) -> bool:
        """False if no source draws random numbers by itself."""
        return not all(isinstance(dataset, Files) for dataset in self.datasets)

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, index: int) -> Any:
        source = self._source_of(index)
        return self.datasets[source][index - self._firsts[source]]

    def order(self, batch: int, seed: int, shuffle: bool) -> "MixedOrder":
        """The order in which a loader reads it."""
        sources = [(name, len(dataset), weight, 0) for name, dataset, weight
                   in zip(self.names, self.datasets, self.weights, strict=True)]
        return MixedOrder(Mixture(sources, batch, seed=seed, shuffle=shuffle))

    def _source_of(self, index: int) -> int:
        for source, last in enumerate(self._firsts[1:]):
            if 0 <= index < last:
                return source
        raise IndexError(f"sample {index}; expected 0 or more, below {len(self)}")

    def _read_together(self, indices: Sequence[int]) -> list[Any]:
        found: list[Any] = [None] * len(indices)
        places: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            places.setdefault(self._source_of(index), []).append(place)
        for source, wanted in places.items():
            first = self._firsts[source]
            samples = self.datasets[source].__getitems__([indices[at] - first for at in wanted])
            for at, sample in zip(wanted, samples, strict=True):
                found[at] = sample
        return found


class MixedOrder:
    """A Mixture with what a BatchSampler asks of an order. All batches are full."""

    last = "join"
    share = staticmethod(Order.share)

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self.samples, self.batch = mixture.samples, mixture.batch
        self.seed, self.shuffle = mixture.seed, mixture.shuffle
        self.step, self.indices = mixture.step, mixture.indices

    def epoch(self, position: int) -> int:
        """0: the sources have epochs of their own."""
        return 0

    def state(self) -> dict[str, Any]:
        """The weights, from which position on they count, and what was given before it."""
        sources = self._mixture.sources
        return {"mixture": {"first": self._mixture.first,
                            "weights": {name: weight for name, _, weight, _ in sources},
                            "given": {name: given for name, _, _, given in sources}}}

    def resumed(self, state: Mapping[str, Any]) -> "MixedOrder":
        """The order that a state was saved in; from its cursor on with the weights of this one."""
        before = state.get("mixture")
        names = [source[0] for source in self._mixture.sources]
        if before is None or set(before["weights"]) != set(names):
            saved = "no mixture" if before is None else f"a mixture of {sorted(before['weights'])}"
            raise ValueError(f"data: the checkpoint has {saved}; expected one of {sorted(names)}")
        weights = [weight for _, _, weight, _ in self._mixture.sources]
        saved = Mixture([(name, samples, before["weights"][name], before["given"][name])
                         for name, samples, _, _ in self._mixture.sources],
                        self.batch, seed=state["seed"], shuffle=self.shuffle, first=before["first"])
        if weights != [before["weights"][name] for name in names]:
            saved = saved.with_weights(state["cursor"], weights)
        return MixedOrder(saved)


def _check(name: Any, pair: Any) -> None:
    if not isinstance(name, str) or not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"mix: {name!r}: {pair!r}; expected a name with (dataset, weight)")
    dataset, weight = pair
    if isinstance(dataset, Mixed) or not hasattr(dataset, "__len__"):
        raise TypeError(f"mix: {name!r} is a {type(dataset).__name__}; expected a dataset with len() "
                        "that is no mixture itself")
    if isinstance(weight, bool) or not isinstance(weight, int):
        raise TypeError(f"mix: {name!r} has the weight {weight!r}; expected a whole number, as 7 and 3 "
                        "for 0.7 and 0.3")
    if not 0 <= weight <= MOST_WEIGHT:
        raise ValueError(f"mix: {name!r} has the weight {weight}; expected 0 to {MOST_WEIGHT}")
