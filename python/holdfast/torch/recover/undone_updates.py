"""Takes updates of torch's optimizers back, as SWIFT does: their operations in reverse, in the same precision.

An update rounds, so not all bits come back (docs/studies/papers.md has shares). The gradient that an update
has used must be kept: it may have been set to zero, or overwritten, since then. What an optimizer holds for a
parameter before its first update is known exactly, and set.

An update that takes a maximum or a sign (AMSGrad, Adamax, Rprop) hides what was there before: it cannot
be taken back.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

Tensor = torch.Tensor
Options = dict[str, Any]

_UNTOLD = "expected SGD, Adam, AdamW, NAdam, RAdam, Adagrad, RMSprop or Adadelta of torch, without AMSGrad"


def why_not(optimizer: Any) -> str:
    """Why updates of an optimizer cannot be taken back; "" if they can."""
    name = type(optimizer).__name__
    if type(optimizer) not in _INVERSES:
        return f"an update of {name} cannot be taken back; {_UNTOLD}"
    if any(vars(optimizer).get(hooks) for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")):
        return f"{name} has hooks of its own around step(), whose changes cannot be taken back; expected none"
    for group in optimizer.param_groups:
        if group.get("amsgrad"):
            return f"an update of {name} with amsgrad cannot be taken back; {_UNTOLD}"
        if isinstance(optimizer, torch.optim.Adadelta) and group["weight_decay"]:
            return "an update of Adadelta with weight_decay cannot be taken back; expected weight_decay=0"
        if any(isinstance(one, DTensor) or one.is_complex() for one in group["params"]):
            return f"{name} has parameters that are sharded or complex; expected real ones, whole on every rank"
    return ""


class KeptUpdate:
    """What an update has used. One object serves many updates: its memory is used again."""

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._parts: list[tuple[Options, Tensor, bool]] = []  # options, a parameter, whether it is its first update
        self._gradients: list[Tensor] = []

    def keep(self, optimizer: Any) -> None:
        """Keeps what an update that is about to be made will use. ValueError if it could not be taken back."""
        if why := why_not(optimizer):
            raise ValueError(f"undo=True: {why}")
        self._optimizer, self._parts, gradients = optimizer, [], []
        for group in optimizer.param_groups:
            options = {key: _plain(one) for key, one in group.items() if key != "params"}
            for one in group["params"]:
                if one.grad is None:
                    continue
                if one.grad.layout is not torch.strided:
                    raise ValueError("undo=True: a gradient is sparse; expected dense ones")
                self._parts.append((options, one, _is_first(optimizer.state.get(one))))
                gradients.append(one.grad)
        if not _are_alike(gradients, self._gradients):
            self._gradients = [torch.empty_like(one) for one in gradients]
        if gradients:
            torch._foreach_copy_(self._gradients, gradients)

    def take_back(self) -> None:
        """Takes the update back."""
        inverse, states = _INVERSES[type(self._optimizer)], self._optimizer.state
        with torch.no_grad():
            for (options, one, is_first), kept in zip(self._parts, self._gradients, strict=True):
                gradient = kept.neg() if options.get("maximize") else kept
                inverse(one.detach(), gradient, states.get(one, {}), options)
                if is_first:
                    states.pop(one, None)


def _plain(option: Any) -> Any:
    return option.item() if isinstance(option, Tensor) and option.numel() == 1 else (
        tuple(map(_plain, option)) if isinstance(option, (list, tuple)) else option)


def _is_first(state: Any) -> bool:
    """Whether the optimizer holds nothing for a parameter yet."""
    return not state or all(one is None for one in state.values())


def _are_alike(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(tensors) == len(others) and all(
        (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        for one, other in zip(tensors, others, strict=True))


# The inverse of each optimizer, with names as in torch: a parameter p, the gradient g that was used, the state s
# and the options o, all but g as they are after the update.


def _sgd(p: Tensor, g: Tensor, s: dict[str, Any], o: Options) -> None:
    lr, decay, momentum = o["lr"], o["weight_decay"], o["momentum"]
    buffer = s.get("momentum_buffer") if momentum else None
    if buffer is None:
        _divide(p.add_(g, alpha=lr), lr * decay)
        return
    if o["nesterov"]:
        _divide(p.add_(g.add(buffer, alpha=momentum), alpha=lr), lr * decay)
    else:
        p.add_(buffer, alpha=lr)
    _take_out(buffer, _with_decay(g, p, decay).mul(1 - o["dampening"]), momentum)


def _adam(p: Tensor, g: Tensor, s: dict[str, Any], o: Options) -> None:
    m, v, t, lr = s["exp_avg"], s["exp_avg_sq"], _count_down(s), o["lr"]
    beta1, beta2 = o["betas"]
    p.addcdiv_(m, (v.sqrt() / (1 - beta2 ** t) ** 0.5).add_(o["eps"]), value=lr / (1 - beta1 ** t))
    _undo_moments(p, g, m, v, t, o)


def _nadam(p: Tensor, g: Tensor, s: dict[str, Any], o: Options) -> None:
    m, v, t, lr = s["exp_avg"], s["exp_avg_sq"], _count_down(s), o["lr"]
    beta1, beta2 = o["betas"]
    mu, mu_next = (beta1 * (1 - 0.5 * 0.96 ** (one * o["momentum_decay"])) for one in (t, t + 1))
    product = s["mu_product"].item()
    size = v.div(1 - beta2 ** t).sqrt_().add_(o["eps"])
    p.addcdiv_(m, size, value=lr * mu_next / (1 - product * mu_next))
    of_gradient = lr * (1 - mu) / (1 - product)
    p.addcdiv_(g, size, value=of_gradient)
    if not o["decoupled_weight_decay"]:
        _divide(p, of_gradient * o["weight_decay"] / size)
    s["mu_product"].div_(mu) if t > 1 else s["mu_product"].fill_(1)
    _undo_moments(p, g, m, v, t, o)


def _radam(p: Tensor, g: Tensor, s: dict[str, Any], o: Options) -> None:
    m, v, t, lr = s["exp_avg"], s["exp_avg_sq"], _count_down(s), o["lr"]
    beta1, beta2 = o["betas"]
    most = 2 / (1 - beta2) - 1
    length = most - 2 * t * beta2 ** t / (1 - beta2 ** t)
    update = m / (1 - beta1 ** t) * lr
    if length > 5:
        update = update * ((1 - beta2 ** t) ** 0.5 / v.sqrt().add_(o["eps"])) * (
            (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) ** 0.5
    p.add_(update)
    _undo_moments(p, g, m, v, t, o)


def _undo_moments(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: float, o: Options) -> None:
    """The rest of Adam and its kin: a decay beside the gradient, or in it, and both moments."""
    beta1, beta2 = o["betas"]
    if o.get("decoupled_weight_decay"):
        _divide(p, o["lr"] * o["weight_decay"])
    else:
        g = _with_decay(g, p, o["weight_decay"])
    if t == 1:
        m.zero_()
        v.zero_()
        return
    _take_out(m, g.mul(1 - beta1), beta1)
    _take_out_square(v, g, 1 - beta2, beta2)


def _adagrad(p: Tensor, g: Tensor, s: dict[str, Any], o: Options) -> None:
    total, t = s["sum"], _count_down(s)
    rate, size = o["lr"] / (1 + (t - 1) * o["lr_decay"]), total.sqrt().add_(o["eps"])
    p.addcdiv_(g, size, value=rate)
    _divide(p, rate * o["weight_decay"] / size)
    if t == 1:
        total.fill_(o["initial_accumulator_value"])
    else:
        _take_out_square(total, _with_decay(g, p, o["weight_decay"]), 1, 1)


def _rmsprop(p: Tensor, g: Tensor, s: dict[str, Any], o: Options) -> None:
    v, mean, t = s["square_avg"], s.get("grad_avg"), _count_down(s)
    alpha, momentum, lr, decay = o["alpha"], o["momentum"], o["lr"], o["weight_decay"]
    size = (v.sqrt() if mean is None else v.addcmul(mean, mean, value=-1).sqrt_()).add_(o["eps"])
    if momentum:
        p.add_(s["momentum_buffer"], alpha=lr)
    else:
        _divide(p.addcdiv_(g, size, value=lr), lr * decay / size)
    if t == 1:
        for name in s.keys() & {"square_avg", "grad_avg", "momentum_buffer"}:
            s[name].zero_()
        return
    g = _with_decay(g, p, decay)
    if momentum:
        _take_out(s["momentum_buffer"], g / size, momentum)
    _take_out_square(v, g, 1 - alpha, alpha)
    if mean is not None:
        _take_out(mean, g.mul(1 - alpha), alpha)
        torch.maximum(v, mean.square(), out=v)  # the next update takes a root of what it is above


def _adadelta(p: Tensor, g: Tensor, s: dict[str, Any], o: Options) -> None:
    v, changes, t = s["square_avg"], s["acc_delta"], _count_down(s)
    rho, eps = o["rho"], o["eps"]
    share = g.square().div_(v.add(eps)).mul_(1 - rho)
    changes.sub_(share, alpha=eps).div_(share.add(rho)).clamp_(min=0)
    p.add_(changes.add(eps).sqrt_().div_(v.add(eps).sqrt_()).mul_(g), alpha=o["lr"])
    if t == 1:
        v.zero_()
        changes.zero_()
    else:
        _take_out_square(v, g, 1 - rho, rho)


def _count_down(s: dict[str, Any]) -> float:
    """The number of the update, which is then not counted any more."""
    t: float = s["step"].item()
    s["step"] -= 1
    return t


def _with_decay(g: Tensor, p: Tensor, decay: float) -> Tensor:
    return g.add(p, alpha=decay) if decay else g


def _divide(p: Tensor, part: Any) -> None:
    """Takes back that a part of p was taken away. Where that left nothing, p stays as it is."""
    left = 1 - torch.as_tensor(part, dtype=p.dtype if isinstance(part, Tensor) else torch.float64)
    if isinstance(part, Tensor):
        p.div_(torch.where(left == 0, 1, left))
    elif part and left != 0:
        p.div_(left.item())


def _take_out(average: Tensor, part: Tensor, factor: float) -> None:
    """Takes a part out of an average, which was multiplied by a factor before that."""
    average.sub_(part).div_(factor) if factor else average.zero_()


def _take_out_square(average: Tensor, g: Tensor, share: float, factor: float) -> None:
    """The same with the share of a square. An average of squares is not negative, whatever was rounded."""
    if factor:
        average.addcmul_(g, g, value=-share).div_(factor).clamp_(min=0)
    else:
        average.zero_()


_INVERSES: dict[type, Callable[[Tensor, Tensor, dict[str, Any], Options], None]] = {
    torch.optim.SGD: _sgd, torch.optim.Adam: _adam, torch.optim.AdamW: _adam, torch.optim.NAdam: _nadam,
    torch.optim.RAdam: _radam, torch.optim.Adagrad: _adagrad, torch.optim.RMSprop: _rmsprop,
    torch.optim.Adadelta: _adadelta}
