"""The generators of Python and of NumPy as plain values, for frameworks other than torch.

Beside torch, holdfast.torch.values.generators does this, which knows torch's generators, too.
"""

import random
from collections.abc import Mapping
from typing import Any


def capture() -> dict[str, Any]:
    """The states of both global generators."""
    import numpy

    kind, keys, *rest = numpy.random.get_state()
    return {"python": random.getstate(), "numpy": (kind, keys.tolist(), *rest)}


def restore(saved: Mapping[str, Any]) -> None:
    import numpy

    random.setstate(saved["python"])
    numpy.random.set_state(saved["numpy"])
