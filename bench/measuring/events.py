"""The events that a run has written, also one whose processes were killed."""

import json
from pathlib import Path
from typing import Any


def events_of(run: Path, name: str, files: str = "*.jsonl") -> list[dict[str, Any]]:
    """The events of that name in the order in which they happened, from these files of the run."""
    out = []
    for path in (run / "events").glob(files):
        for line in path.read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # a kill cut this line off
                continue
            if event["event"] == name:
                out.append(event)
    return sorted(out, key=lambda event: event["mono_ns"])
