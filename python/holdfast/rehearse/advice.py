"""What to do about what a rehearsal has found."""

from holdfast.rehearse.differences import TENSORS, readable_name
from holdfast.rehearse.rehearsal import Killed, Outcome


def advise(outcome: Outcome) -> list[str]:
    """Sentences for the user; none if all is exact."""
    if outcome.is_exact:
        return []
    first = outcome.first
    if outcome.never_changes:
        return ["No tensor that is saved has changed in any step. Expected model= and optimizer= to be "
                "those that are trained."]
    if outcome.by_itself is not None and first is None:
        return ["The training differs from itself without a kill, so that later steps cannot be "
                "compared. Expected fixed seeds, and torch.use_deterministic_algorithms(True)."]
    if first is None:
        return ["All compared steps have the same bits, and yet state is missing that later ones need."]
    return [_advice_for(first)]


def _advice_for(one: Killed) -> str:
    named = one.cause or one.difference
    if one.resumed_after is None and one.alone is None:
        return "The restarted command did not call ck.resume(). Expected start = ck.resume() " \
               "before its loop."
    assert named is not None
    if named.what == "resume":
        return "Expected that each start of the command names the same run (no time, no number of " \
               "the process in it), that nothing removes it, and that ck.resume() gets no other step."
    if named.what == "generator":
        return f"{readable_name(named.name)} came back as it was in ck.step(), and had changed " \
               "before the next step. Expected that all draws of a step come before its ck.step()."
    if named.what == "found" and named.name.startswith(TENSORS):
        return f"Save what {readable_name(named.name)} holds: a module in model= or ema=, and other tensors by " \
               "an object with state_dict() and load_state_dict() in objects=."
    if named.what == "found":
        path = named.name.removeprefix("__main__.").removeprefix("data.").rpartition("().")[2]
        return f'Save it: Checkpointer(..., objects={{"{path.rpartition(".")[2]}": {path}}}).'
    if named.what == "step":
        return "The restarted command makes other steps. Expected a loop that begins at the number " \
               "that ck.resume() returns, range(loader.epoch, epochs) for epochs, and data= for its loader."
    if named.what == "batch":
        return "All that Holdfast saves came back. Something else decides about the batch: give the " \
               "loader as data=, and generators and counters of your own in objects=, and let each " \
               "step read its own batch, not the one before it."
    if named.what == "loss":
        return "Batch and state were the same. Something else changes the loss: a generator or a " \
               "counter that is not saved belongs in objects=."
    if one.cause is None:
        return f"All that Holdfast saves came back, and the update of step {named.step} made something " \
               "else of it. What takes part in an update (kept gradients, copies of weights, counters) " \
               "belongs in objects=."
    return f"{readable_name(named.name)} came back with another value. Expected that nothing changes " \
           "it between ck.step() and the next step, that ck.step() stands behind all updates of a " \
           "step, and that load_state_dict() takes all that state_dict() gives."
