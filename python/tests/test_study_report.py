"""The report of study/checkpoints in a real browser: its charts are drawn, light, dark and on paper, and it asks for nothing."""

import http.server
import json
import re
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from long_tests import LONG

ROOT = Path(__file__).resolve().parents[2]
BROWSER = shutil.which("chromium")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"]  # fmt: skip
pytestmark = [LONG, pytest.mark.skipif(not BROWSER, reason="needs Debian's package chromium")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    subprocess.run([sys.executable, ROOT / "study/checkpoints/report.py", ROOT / "study/checkpoints/results.json", path],
                   check=True)  # fmt: skip
    return path


@pytest.fixture(scope="module")
def page(report):
    """Its address, and the paths that were asked for."""
    asked = []

    class Server(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=report.parent)

        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/report.html", asked
        server.shutdown()


def browse(page, folder, *options):
    """What the browser has told about the page."""
    return subprocess.run([BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, page[0]], check=True,
                          capture_output=True, text=True, timeout=120).stderr  # fmt: skip


def pixels(path):
    """A PNG file of 8 bits a colour as height x width x colours."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, bits, colour = struct.unpack_from(">IIBB", body)
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    wide = {2: 3, 6: 4}[colour]
    assert bits == 8
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * wide)
    made = np.zeros((height + 1, width * wide), np.uint8)
    for number, (kind, row) in enumerate(zip(rows[:, 0], rows[:, 1:], strict=True)):
        made[number + 1] = unfiltered(kind, row, made[number], wide)
    return made[1:].reshape(height, width, wide)[:, :, :3]


def unfiltered(kind, row, above, wide):
    """A row of a PNG file as it was before it was made easy to pack: see section 9 of the format."""
    if kind in (0, 2):
        return row + above if kind else row
    if kind == 1:
        return np.cumsum(row.reshape(-1, wide), axis=0, dtype=np.uint8).reshape(-1)
    done = [0] * wide
    upper = [0] * wide + above.tolist()
    for place, value in enumerate(row.tolist()):
        left, over, corner = done[place], upper[place + wide], upper[place]
        if kind == 3:
            done.append((value + (left + over) // 2) & 255)
            continue
        near = left + over - corner
        done.append((value + min((left, over, corner), key=lambda one: abs(near - one))) & 255)
    return np.array(done[wide:], np.uint8)


def count(picture, colour):
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return int((picture == wanted).all(axis=2).sum())


def colours(report, dark):
    """The colours of the report's style, by name."""
    found = re.findall(r":root\{([^}]*)\}", report.read_text())[dark]
    return {name: value if len(value) == 7 else "#" + "".join(2 * one for one in value[1:])
            for name, value in re.findall(r"--(\w+):(#\w+)", found)}  # fmt: skip


@pytest.mark.parametrize("dark", [False, True])
def test_the_charts_are_drawn_light_and_dark(report, page, tmp_path, dark):
    told = browse(page, tmp_path, "--window-size=1200,6000", f"--screenshot={tmp_path / 'page.png'}",
                  *(["--blink-settings=preferredColorScheme=0"] if dark else []))  # fmt: skip
    assert "CONSOLE" not in told, told
    picture, style = pixels(tmp_path / "page.png"), colours(report, dark)
    assert count(picture, style["back"]) > picture.shape[0] * picture.shape[1] / 2
    for name in ("good", "bad"):  # 16 pixels high, and hundreds wide
        assert count(picture, style[name]) > 5000, name
    assert count(picture, colours(report, not dark)["good"]) == 0


def test_it_is_printed_whole(page, tmp_path):
    browse(page, tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF") and len(re.findall(rb"/Type /Page\b(?!s)", printed)) >= 3


def test_it_asks_for_nothing(page, tmp_path):
    address, asked = page
    asked.clear()
    browse(page, tmp_path, f"--log-net-log={tmp_path / 'net.json'}", "--dump-dom")
    assert asked[0] == "/report.html" and set(asked) <= {"/report.html", "/favicon.ico"}, asked
    origin = address.rpartition("/")[0]
    events = json.loads((tmp_path / "net.json").read_text())["events"]
    own = [one["params"]["url"] for one in events if one.get("params", {}).get("initiator") == origin]
    assert set(own) <= {f"{origin}/favicon.ico"}, own
