#!/usr/bin/env python3
"""Runs commands in a new terminal, as if they were typed, and draws the final screen as a picture.

    scripts/terminal-picture.py OUT.png BIN COMMAND…
    scripts/terminal-picture.py docs/images/generate.png build/release/bin 'tessera generate "red apple" --seed 7' …

BIN is the folder of `tessera`. The commands run in an empty folder; what they print is drawn as they printed it, by Debian's
chromium (scripts/setup.sh --checks). The last picture that they wrote is below.
"""
import base64
import fcntl
import html
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

COLUMNS, DEADLINE = 88, 300
PROMPT = "$ "


def run(command, folder, environment):
    """The output of the command on a terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe("sh", ["sh", "-c", command], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    output, deadline = b"", time.monotonic() + DEADLINE
    while True:
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            sys.exit(f"terminal-picture.py: {command} does not end")
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            break
        output += part
    os.close(terminal)
    status = os.waitpid(process, 0)[1]
    if status != 0:
        sys.exit(f"terminal-picture.py: {command} ends with {status}: {output.decode(errors='replace')}")
    return output.decode()


def screen(text):
    """The lines on the screen at the end: \\r returns to column 0, ESC [ K clears the rest of the line, colours are ignored."""
    lines, column = [""], 0
    for match in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|(.)", text, re.DOTALL):
        _, code, letter = match.groups()
        if code == "K":
            lines[-1] = lines[-1][:column]
        elif code is not None and code not in "mhl":
            sys.exit(f"terminal-picture.py: a terminal's order that it does not know: {match[0]!r}")
        elif letter == "\r":
            column = 0
        elif letter == "\n":
            lines.append("")
            column = 0
        elif letter is not None:
            lines[-1] = lines[-1][:column].ljust(column) + letter + lines[-1][column + 1:]
            column += 1
    while lines and not lines[-1]:
        lines.pop()
    # Wraps lines as a terminal does.
    return [line[at:at + COLUMNS] for line in lines for at in range(0, max(1, len(line)), COLUMNS)]


def page(lines, picture):
    def line(text):
        return f"<b>{html.escape(text)}</b>" if text.startswith(PROMPT) else html.escape(text)
    shown = "" if picture is None else f'<img src="data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}">'
    return f"""<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #16181d; color: #d7dae0; width: {COLUMNS + 4}ch; font: 15px/1.45 "DejaVu Sans Mono", "Liberation Mono", monospace; }}
pre {{ margin: 0; padding: 1.2em 2ch; font: inherit; white-space: pre; }}
b {{ color: #8fd6a5; font-weight: 600; }}
img {{ margin: 0 2ch 1.2em; width: 128px; image-rendering: pixelated; }}
</style><pre>{chr(10).join(map(line, lines))}</pre>{shown}"""


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    out, programs, commands = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder, "work")
        work.mkdir()
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "xterm-256color", "HOME": folder}
        lines = []
        for command in commands:
            lines += [PROMPT + command, *screen(run(command, work, environment))]
        pictures = sorted(work.rglob("*.png"), key=lambda path: path.stat().st_mtime)
        file = pathlib.Path(folder, "page.html")
        file.write_text(page(lines, pictures[-1] if pictures else None))
        height = int((len(lines) + 2.4) * 15 * 1.45) + (150 if pictures else 0)
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=2",
                        f"--user-data-dir={folder}/profile", f"--window-size={int((COLUMNS + 4) * 9.04)},{height}",
                        f"--screenshot={out}", file.as_uri()], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       timeout=DEADLINE)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
