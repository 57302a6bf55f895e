"""What Lightning's Trainer keeps beside the model and its optimizers, as an object of a checkpoint."""

from typing import Any

import torch

from holdfast.torch.adapters.lightning_loops import begin_restart
from holdfast.torch.adapters.same_datasets import check_fingerprints, fingerprints_of

_WEIGHTS = "state_dict"  # the key of the model's weights in a checkpoint of Lightning's


class LightningState:
    """The state of Lightning's loops, callbacks and sums, between two batches."""

    def __init__(self, trainer: Any, own: Any) -> None:
        """`own` is the callback of Holdfast, which has no state."""
        self._trainer = trainer
        self._callbacks = [one for one in trainer.callbacks if one is not own]
        self.sums: dict[str, dict[str, Any]] = {}  # what add_sums() will add to
        self._workers: list[bool] = []
        self._read_ahead: list[Any] = []
        self._datasets: list[str] = []  # fingerprints of the checkpoint

    @property
    def loaders(self) -> list[Any]:
        """The loaders of the training; none before Lightning has made them."""
        combined = self._trainer.fit_loop._combined_loader
        return [] if combined is None else list(combined.flattened)

    @property
    def is_between_epochs(self) -> bool:
        """True if the restored state is that of an epoch's end."""
        progress = self._trainer.fit_loop.epoch_progress.current
        return bool(progress.ready == progress.completed)

    def state_dict(self) -> dict[str, Any]:
        trainer, extra = self._trainer, {}
        trainer.lightning_module.on_save_checkpoint(extra)
        states = {one.state_key: one.state_dict() for one in self._callbacks}
        data = trainer.datamodule
        return {"fit_loop": trainer.fit_loop.state_dict(), "module": extra,
                "callbacks": {key: state for key, state in states.items() if state},
                "hooks": {one.state_key: state for one in self._callbacks
                          if (state := _saved_by_hook(one, trainer)) is not None},
                "datamodule": {} if data is None else data.state_dict(),
                "stops": trainer.should_stop,
                "read ahead": list(getattr(trainer.fit_loop._data_fetcher, "batches", ())),
                "sums": _sums(trainer.fit_loop.epoch_loop._results),
                "metrics": _metric_states(trainer.lightning_module),
                "logged": _tensors(trainer._logger_connector._callback_metrics),
                "datasets": fingerprints_of(self.loaders),
                "workers": [_has_workers(one) for one in _validation_loaders(trainer)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        trainer.fit_loop.load_state_dict(state["fit_loop"])
        begin_restart(trainer.fit_loop)
        trainer.lightning_module.on_load_checkpoint(state["module"])
        for one in self._callbacks:
            if one.state_key in state["callbacks"]:
                one.load_state_dict(state["callbacks"][one.state_key])
        if "epoch is over" in state:
            self._end_batch(state["epoch is over"])
            return
        for one in self._callbacks:
            if one.state_key in state["hooks"]:
                _load_by_hook(one, trainer, state["hooks"][one.state_key])
        if trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(state["datamodule"])
        trainer.should_stop = state["stops"]
        self.sums, self._workers = state["sums"], state["workers"]
        self._datasets = state.get("datasets", [])
        self._read_ahead = state["read ahead"]
        _load_metric_states(trainer.lightning_module, state["metrics"])
        trainer._logger_connector._callback_metrics.update(state["logged"])

    def _end_batch(self, epoch_is_over: bool) -> None:
        """Completes the counters of a checkpoint of an earlier version, from inside a batch."""
        fit_loop = self._trainer.fit_loop
        fit_loop.epoch_loop.batch_progress.increment_completed()
        fit_loop.epoch_loop._batches_that_stepped += 1
        if epoch_is_over:
            fit_loop.epoch_progress.increment_processed()
            fit_loop.epoch_progress.increment_completed()

    def make_workers(self) -> None:
        """Makes the iterators of validation loaders whose workers stay, if the run had made them.

        Making one draws from the generators, which are restored after that.
        """
        if any(self._workers):
            trainer = self._trainer
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.setup_data()
            trainer.training = True
        for loader, had in zip(_validation_loaders(self._trainer), self._workers, strict=False):
            if had and not _has_workers(loader):
                iter(loader)

    def check_datasets(self) -> None:
        """ValueError if Lightning's loaders read other datasets than before."""
        check_fingerprints(self._datasets, fingerprints_of(self.loaders))

    def hand_out_read_ahead(self) -> None:
        """Has the next batches be those that Lightning had read ahead, as it does without a length."""
        if self._read_ahead:
            device = self._trainer.strategy.root_device
            self._trainer.fit_loop._data_fetcher.batches[:0] = [
                _on_device(batch, device) for batch in self._read_ahead]

    def add_sums(self) -> None:
        """Adds what self.log() had summed up in the epoch, once a batch has made the sums anew.

        The batch has added to 0, so the sums get the same bits as without the stop.
        """
        results = self._trainer.fit_loop.epoch_loop._results
        for key in [key for key in self.sums if key in results]:
            metric, saved = results[key], self.sums.pop(key)
            if not metric.is_tensor:
                continue
            value = saved["value"].to(metric.value.device)
            reduce = metric.meta.reduce_fx
            is_extreme = metric.meta.is_max_reduction or metric.meta.is_min_reduction
            metric.value = reduce(value, metric.value) if is_extreme else value + metric.value
            if metric.meta.is_mean_reduction:
                metric.cumulated_batch_size += saved["size"].to(metric.value.device)


def _saved_by_hook(callback: Any, trainer: Any) -> dict[str, Any] | None:
    """What a callback puts into a checkpoint by its on_save_checkpoint; None if it has no such hook.

    The hook may move the model's weights to another key. Those are saved anyway, so only the key
    is noted.
    """
    if _is_inherited(callback, "on_save_checkpoint"):
        return None
    weights = trainer.lightning_module.state_dict()
    made = {_WEIGHTS: weights}
    callback.on_save_checkpoint(trainer, trainer.lightning_module, made)
    return {"weights": [key for key, value in made.items() if value is weights],
            "values": {key: value for key, value in made.items() if value is not weights}}


def _load_by_hook(callback: Any, trainer: Any, saved: dict[str, Any]) -> None:
    weights = trainer.lightning_module.state_dict()
    values = {**saved["values"], **dict.fromkeys(saved["weights"], weights)}
    callback.on_load_checkpoint(trainer, trainer.lightning_module, values)


def _is_inherited(callback: Any, name: str) -> bool:
    """True if the method is that of Lightning's base class, which does nothing."""
    made = getattr(type(callback), name)
    return made.__module__.endswith("pytorch.callbacks.callback") or (
        made.__module__ == "pytorch_lightning.callbacks.callback")


def _sums(results: Any) -> dict[str, dict[str, Any]]:
    """What self.log(on_epoch=True) has summed up in the epoch so far."""
    return {key: {"value": metric.value,
                  "size": metric.cumulated_batch_size if metric.meta.is_mean_reduction else None}
            for key, metric in results.items()
            if metric.is_tensor and metric.meta.on_epoch and metric._update_count}


def _metrics(module: Any) -> dict[str, Any]:
    """The metrics of torchmetrics that the module has, by their names in it."""
    return {name: one for name, one in module.named_modules()
            if any(base.__module__ == "torchmetrics.metric" for base in type(one).__mro__)}


def _metric_states(module: Any) -> dict[str, Any]:
    return {name: {"updates": metric._update_count,
                   "state": {key: vars(metric)[key] for key in metric._defaults}}
            for name, metric in _metrics(module).items() if metric._update_count}


def _load_metric_states(module: Any, saved: dict[str, Any]) -> None:
    for name, metric in _metrics(module).items():
        if name in saved:
            metric._update_count, metric._computed = saved[name]["updates"], None
            for key, value in saved[name]["state"].items():
                setattr(metric, key, _moved(value, metric.device))


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(_on_device(one, device) for one in value)
    return {key: _on_device(one, device) for key, one in value.items()} if (
        isinstance(value, dict)) else value


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [one.to(device) for one in value]
    return value.to(device)


def _tensors(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}


def _validation_loaders(trainer: Any) -> list[Any]:
    loader = trainer.fit_loop.epoch_loop.val_loop._combined_loader
    return [] if loader is None else list(loader.flattened)


def _has_workers(loader: Any) -> bool:
    """True if a DataLoader keeps its workers, and with them an iterator that exists by now."""
    return bool(getattr(loader, "persistent_workers", False)) and loader._iterator is not None
