"""The folder of a run of scripts/first-card.sh: each row's output, the facts of the machine, a page, one archive.

Nothing is sent automatically. Everything that would identify a machine or person is removed from every text.
"""

import datetime
import ipaddress
import os
import pathlib
import platform
import re
import socket
import subprocess
import tarfile
import threading

# Commands that describe the machine, by the name of the file with their output.
FACTS = {
    "nvidia-smi": ["nvidia-smi", "-q"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "nvlink": ["nvidia-smi", "nvlink", "-s"],
    "processor": ["lscpu"],
    "memory": ["free", "-h"],
    "disks": ["df", "-h"],
    "kernel": ["uname", "-srvm"],
    "system": ["cat", "/etc/os-release"],
    "libraries": ["sh", "-c", "ldconfig -p | grep -iE 'cuda|nccl|cudnn|ibverbs|stdc' | sort"],
    "limits": ["sh", "-c", "ulimit -a"],
}
CLOCKS = ["nvidia-smi", "--query-gpu=timestamp,index,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,memory.used,"
          "clocks_throttle_reasons.active", "--format=csv", "-lms", "500"]
PROCESSES = ["nvidia-smi", "--query-compute-apps=gpu_bus_id,pid,used_memory", "--format=csv,noheader", "-lms", "1000"]

SENT = """What this archive holds: the kinds of GPU, processor, driver and libraries, clocks, power and memory while it ran, and of
each row its command, its whole output, its exit code and the pictures that it made. Serial numbers, UUIDs, host and user
names, home folders and addresses of networks were removed; of the environment nothing is in it."""


class Redaction:
    """Replaces everything that identifies a machine or person."""

    def __init__(self, environment=None):
        environment = os.environ if environment is None else environment
        names = {socket.gethostname(), platform.node(), environment.get("USER", ""), environment.get("LOGNAME", ""),
                 environment.get("SUDO_USER", "")}
        names |= {name.split(".")[0] for name in names}
        self.words = sorted((name for name in names if len(name) > 3 and name not in ("root", "user", "localhost")), key=len, reverse=True)
        self.homes = [home for home in {environment.get("HOME", ""), os.path.expanduser("~")} if len(home) > 5]

    def __call__(self, text):
        for home in self.homes:
            text = text.replace(home, "~")
        for word in self.words:
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", "[name]", text)
        text = re.sub(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", r"\1-[uuid]", text)
        text = re.sub(r"(?im)^(\s*(?:serial number|board id|board part number|gpu part number|chassis serial number|gpu uuid|pci serial"
                      r"|module id|platform info|.*\bguid)\s*:\s*)\S.*$", r"\1[removed]", text)
        text = re.sub(r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "[uuid]", text)
        text = re.sub(r"\b([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b", "[address]", text)
        text = re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b", self.address, text)
        return re.sub(r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:])", self.address, text)

    @staticmethod
    def address(found):
        try:
            address = ipaddress.ip_address(found.group())
        except ValueError:
            return found.group()  # a version, or a time
        return found.group() if address.is_loopback or address.is_unspecified else "[address]"


class Report:
    """A folder `results` that is packed at the end, whatever happened."""

    def __init__(self, folder, redacts=True):
        self.folder = pathlib.Path(folder)
        (self.folder / "rows").mkdir(parents=True, exist_ok=True)
        self.redaction = Redaction() if redacts else lambda text: text
        self.samplers = []
        self.rows = 0

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.redaction(text), errors="replace")

    def facts(self):
        for name, command in FACTS.items():
            try:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30)
                self.write(f"machine/{name}", done.stdout + done.stderr)
            except (OSError, subprocess.TimeoutExpired) as error:
                self.write(f"machine/{name}", f"not to be had: {error}\n")

    def sample(self):
        """Records clocks, power and memory of every GPU, and the memory of each process, until the run ends."""
        for name, command in (("clocks.csv", CLOCKS), ("processes.csv", PROCESSES)):
            try:
                process = subprocess.Popen(command, stdout=open(self.folder / name, "w"), stderr=subprocess.STDOUT)
            except OSError:
                continue
            self.samplers.append(process)

    def row_folder(self, name):
        self.rows += 1
        folder = self.folder / "rows" / f"{self.rows:02d}-{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-')}"
        folder.mkdir()
        return folder

    def keep_row(self, folder, command, exit_code, seconds, output, errors):
        """Keeps the output of a row's command, and how it ended."""
        place = str(folder.relative_to(self.folder))
        self.write(f"{place}/command", " ".join(map(str, command)) + "\n")
        self.write(f"{place}/exit", f"{exit_code}\n{seconds:.1f} s\n")
        self.write(f"{place}/stdout", output)
        self.write(f"{place}/stderr", errors)

    def pack(self, archive):
        for process in self.samplers:
            process.terminate()
        for process in self.samplers:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
        for name in ("clocks.csv", "processes.csv"):
            if (self.folder / name).exists():
                self.write(name, (self.folder / name).read_text(errors="replace"))
        part = pathlib.Path(str(archive) + ".part")
        with tarfile.open(part, "w:gz") as tar:
            tar.add(self.folder, arcname="first-card", filter=anonymous)
        part.rename(archive)


def anonymous(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def page(title, facts, rows, seconds):
    """results.md: a table in the form of docs/performance.md."""
    lines = [f"### {title}, {datetime.datetime.now(datetime.timezone.utc).date().isoformat()}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()] + [""]
    lines += ["| measurement | outcome | figure |", "|---|---|---|"]
    for row in rows:
        detail = row["detail"].replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {row['name']} | {row['outcome']} | {detail} |")
    lines += ["", f"{seconds:.0f} s of measurements.", "", SENT, ""]
    return "\n".join(lines)


class Deadline:
    """Ends a process group at its deadline, so that nothing it started outlives its row."""

    def __init__(self, process, seconds):
        self.timer = threading.Timer(max(0, seconds), self.end)
        self.process, self.ended = process, False
        self.timer.start()

    def end(self):
        self.ended = True
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass

    def cancel(self):
        self.timer.cancel()
