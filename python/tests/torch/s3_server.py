"""A real S3 server on the loopback interface, for tests: `rclone serve s3`."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEYS = ("accesskey", "secretkey")


def find_rclone() -> str | None:
    """The path of rclone: in the environment that runs the tests, or else on the machine."""
    beside = Path(sys.executable).with_name("rclone")
    named = os.environ.get("HOLDFAST_RCLONE")
    return named or (str(beside) if beside.exists() else shutil.which("rclone"))


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Serves the folders in `folder` as buckets. Yields the environment variables for clients."""
    program = find_rclone()
    assert program is not None
    server = subprocess.Popen(
        [program, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", "--auth-key",
         ",".join(KEYS), folder], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = ""
        while (found := re.search(r"\[(http://[^/]+)/\]", said)) is None:
            line = server.stderr.readline()
            assert line, said
            said += line
        yield {"AWS_ACCESS_KEY_ID": KEYS[0], "AWS_SECRET_ACCESS_KEY": KEYS[1],
               "AWS_ENDPOINT_URL": found[1], "no_proxy": "127.0.0.1"}
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
