"""Runs a command and shows one line about it instead of its output.

    progress.py [--every SECONDS] LABEL LOG COMMAND...

On a terminal the line is redrawn every second; elsewhere a new line is printed every 20
seconds. Lines that begin with "[12/71] ", as Ninja prints them, give the count of steps and
the time that is left:

    building 12 of 71, about 3 min left

All output of the command goes to the file LOG. If the command fails, its output is printed
too, without the lines of steps that succeeded. The exit status is that of the command.
"""

import argparse
import os
import re
import selectors
import subprocess
import sys
import time

STEP = re.compile(rb"\[(\d+)/(\d+)\] ")
EVERY_ON_TERMINAL = 1.0
EVERY_ELSEWHERE = 20.0
# Before this many seconds the first steps say too little about the rest.
FIRST_ESTIMATE = 8.0
INTERRUPTED = 130  # the exit status that shells give to a command that Ctrl-C ended


def duration(seconds: float) -> str:
    """A rough duration: "40 s", "3 min"."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


def describe(label: str, done: int, total: int, reached: float, now: float) -> str:
    """The line that is shown while the command runs.

    `reached` and `now` are seconds since the start: when the last step was done, and now.
    """
    if total == 0:
        return f"{label}, {duration(now)} so far"
    line = f"{label} {done} of {total}"
    left = reached / done * total - now
    return line if now < FIRST_ESTIMATE or left < 1 else f"{line}, about {duration(left)} left"


class Progress:
    """The steps that the command has reported, and the line that is on the screen."""

    def __init__(self, label: str, every: float):
        self.label = label
        self.every = every
        self.terminal = sys.stdout.isatty()
        self.start = self.shown = time.monotonic()
        self.done = self.total = 0
        self.reached = 0.0
        self.rest = b""
        self.failure = []

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def take_output(self, output: bytes):
        """Counts steps. Keeps the lines that are worth reading after a failure."""
        *lines, self.rest = (self.rest + output).split(b"\n")
        for line in lines:
            step = STEP.match(line)
            if step is None:
                self.failure.append(line)
            elif int(step[1]) > 0:  # step 0 is Ninja's look for new files
                self.done, self.total = int(step[1]), int(step[2])
                self.reached = self.elapsed()

    def show_when_due(self):
        if time.monotonic() - self.shown < self.every:
            return
        self.shown = time.monotonic()
        line = describe(self.label, self.done, self.total, self.reached, self.elapsed())
        # \r goes to the start of the line, \033[K erases what an older line left there.
        print(f"\r{line}\033[K" if self.terminal else line, flush=True,
              end="" if self.terminal else "\n")

    def finish(self, status: int):
        if self.terminal:
            print("\r\033[K", end="", flush=True)
        if status != 0:
            sys.stdout.flush()
            sys.stderr.buffer.write(b"\n".join([*self.failure, self.rest]))
        elif self.elapsed() > 2:
            print(f"{self.label}: done in {duration(self.elapsed())}", flush=True)


def run(progress: Progress, log: str, command: list) -> int:
    with open(log, "wb") as file, selectors.DefaultSelector() as selector:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        selector.register(child.stdout, selectors.EVENT_READ)
        try:
            while True:
                if selector.select(timeout=progress.every):
                    output = os.read(child.stdout.fileno(), 65536)
                    if not output:
                        return child.wait()
                    file.write(output)
                    file.flush()
                    progress.take_output(output)
                progress.show_when_due()
        except KeyboardInterrupt:  # Ctrl-C reaches the command as well, which cleans up
            child.wait()
            return INTERRUPTED


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a command behind a progress line.")
    parser.add_argument("--every", type=float)
    parser.add_argument("label")
    parser.add_argument("log")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    default = EVERY_ON_TERMINAL if sys.stdout.isatty() else EVERY_ELSEWHERE
    progress = Progress(options.label, options.every or default)
    status = run(progress, options.log, options.command)
    progress.finish(status)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
