#!/usr/bin/env python3
"""Tests scripts/first-card.sh without a GPU: its plan, its judgement of programs' output, and its archive."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/first-card.sh"
sys.path.insert(0, str(ROOT / "scripts"))
from first_card_report import Redaction  # noqa: E402

# All programs in one: each takes what it is from its name. A picture is its seed, and its group where the test says so.
STAND_IN = r"""#!/usr/bin/env python3
import http.server, json, os, pathlib, signal, subprocess, sys
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
bug = os.environ.get("STAND_IN_BUG", "")
bugs = bug.split(",")

def picture(path, seed, together):
    data = f"pixels of {seed}{' in a batch' if together and 'batch' in bugs else ''}".encode()
    if "graph" in bugs and "TESSERA_GRAPHS" not in os.environ:
        data += b" in a graph"
    chunk = lambda kind, body: len(body).to_bytes(4, "big") + kind + body + b"\0\0\0\0"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"tEXt", str(path).encode()) + chunk(b"IDAT", data) + chunk(b"IEND", b""))

def option(flag, default):
    return arguments[arguments.index(flag) + 1] if flag in arguments else default

# One group, whose workers are started again when one of them has ended.
def serve():
    worker = pathlib.Path(sys.argv[0]).with_name("tessera-worker")
    cards = pathlib.Path(option("--config", "")).read_text().count("cuda:")
    workers, restarts, asked = [], -1, 0
    started = []

    def keep():
        nonlocal restarts
        if workers and all(one.poll() is None for one in workers):
            return
        for one in workers:
            one.kill()
            one.wait()
        restarts += 1
        if restarts == 0 or "gone" not in bugs:
            workers[:] = [subprocess.Popen([worker]) for _ in range(cards)]

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, value):
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            keep()
            if self.path == "/v1/server":
                state = "refused" if "gone" in bugs and restarts else "ready"
                self.answer({"groups": [{"state": state, "restarts": restarts}]})
            else:
                self.answer({"status": "done" if restarts else "running"})

        def do_POST(self):
            self.answer({"id": "1"})

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    def end(*_):
        for one in workers:
            one.kill()
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    print(json.dumps({"event": "listening", "http": server.server_address[1]}), flush=True)
    server.serve_forever()

if bug.startswith("all:") and name != "nvidia-smi" and os.environ.get("TESSERA_GRAPHS") != bug[4:]:
    print("half of an answer")
    sys.exit("an illegal memory access was encountered")
if "sleep" in bugs and name == "bench_shapes":
    import time
    time.sleep(3600)
if name == "nvidia-smi" and "-q" in arguments and "--query-gpu=name,driver_version,memory.total" not in arguments:
    print("    Serial Number                         : 1652924000042\n    GPU UUID : GPU-c0ffee00-1111-2222-3333-444455556666\n    Product Name : A card")
elif name == "nvidia-smi":
    print("\n".join(["A card, 580.1, 81559 MiB"] * int(os.environ.get("STAND_IN_CARDS", 1))))
elif name == "tessera" and arguments[0] == "doctor":
    print("ok  a doctor")
elif name == "tessera" and arguments[0] == "train":
    print(json.dumps({"event": "step", "loss": 0.5, "seconds": 1.5}, separators=(",", ":")))
elif name == "tessera" and arguments[0] == "generate":
    count, seed = int(option("--count", 1)), int(option("--seed", 1))
    if "device" in bugs:
        sys.exit("the CUDA plug-in is not installed")
    for number in range(seed, seed + count):
        picture(pathlib.Path(option("--output", "").replace("{seed}", str(number))), number, count > 1)
elif name == "tessera" and arguments[0] == "replay":
    print(json.dumps({"event": "replay", "mean_squared_difference": 900 if "picture" in bugs else 0.01}))
    print(json.dumps({"event": "done", "images": 1}))
elif name == "tessera" and arguments[0] == "verify":
    if "layout" in bugs and "ring" in option("--layout", ""):
        sys.exit("the images differ")
    print(json.dumps({"communicator": "host" if "host" in bugs else "nccl"}))
elif name == "tessera" and arguments[0] == "bench":
    cards = {"serial": 1, "": 1, "ulysses=8": 4 if "slow" in bugs else 5}.get(option("--layout", ""), 1.95)
    if option("--layout", "") == "ulysses=4":
        cards = 3
    print(json.dumps({f"{part}_seconds{end}": 0.01 / cards for part, end in (("step", "_median"), ("decode", ""), ("text", ""), ("load", ""))}))
elif name == "tessera" and arguments[0] == "serve":
    serve()
elif name == "tessera-worker":
    signal.pause()
elif name == "tessera-golden":
    print("1 case failed" if "golden" in bugs else "all cases passed")
    sys.exit("golden" in bugs)
elif name == "bench_operators":
    for dtype in ("bf16", "fp32"):
        print(json.dumps({"operator": "linear", "dtype": dtype, "error": 1 if "operator" in bugs else 1e-9, "tolerance": 1e-6}))
elif name == "bench_shapes":
    figures = {"flux_dev": {"milliseconds": 120, "teraflops_per_second": 620}, "pixart_sigma": {"milliseconds": 29}, "sd3_medium": {"milliseconds": 38},
               "hunyuandit": {"milliseconds": 51}, "autoencoder": {"milliseconds": 80},
               "matmul": {"milliseconds": 1.5, "teraflops_per_second": 690}}[arguments[1]]
    print(json.dumps({"shape": arguments[1], **figures}))
"""


class FirstCardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("tessera", "tessera-worker", "tessera-golden", "bench_operators", "bench_shapes", "nvidia-smi"):
            program = self.folder / name
            program.write_text(STAND_IN)
            program.chmod(0o755)
        self.stem = str(self.folder / "report")

    def environment(self, bug="", driver=True, cards=1):
        path = f"{self.folder}:{os.environ['PATH']}" if driver else os.environ["PATH"]
        return dict(os.environ, PATH=path, TESSERA_FIRST_CARD_PROGRAMS=str(self.folder), STAND_IN_BUG=bug,
                    STAND_IN_CARDS=str(cards))

    def script(self, *options, **machine):
        return subprocess.run([SCRIPT, *options], capture_output=True, text=True, cwd=ROOT, env=self.environment(**machine))

    def visit(self, *options, **machine):
        done = self.script("--weights", "zeros", "--output", self.stem, *options, **machine)
        rows = json.loads(pathlib.Path(self.stem + ".json").read_text())["rows"]
        return done, {row["name"]: row for row in rows}, pathlib.Path(self.stem + ".md").read_text()

    def archive(self):
        """The texts of the archive by name, which is whole."""
        with tarfile.open(self.stem + ".tar.gz") as tar:
            files = {member.name.removeprefix("first-card/"): tar.extractfile(member).read()
                     for member in tar.getmembers() if member.isfile()}
        self.assertIn("results.md", files)
        self.assertIn("machine/nvidia-smi", files)
        for row in {name.split("/")[1] for name in files if name.startswith("rows/")}:
            for part in ("command", "stdout", "stderr", "exit"):
                self.assertIn(f"rows/{row}/{part}", files)
        return {name: data.decode(errors="replace") for name, data in files.items()}

    def test_everything_that_is_here_is_measured_and_packed(self):
        done, rows, table = self.visit("--model", "assets/emoji")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name in ("values of operators against fp64", "goldens of golden transformers", "run 2 of one seed, bf16",
                     "batch contract, image 4", "certificate of tensor=2", "flux_dev, 50 in a row", "FLUX.1-dev of full size",
                     "step of flux_dev against matmul", "autoencoder, 10 in a row", "bench of the embedded model",
                     "bench of emoji", "LoRA steps of FLUX.1-dev at 512x512", "start 4 of the same"):
            self.assertEqual(rows[name]["outcome"], "passed", rows[name])
            self.assertIn(f"| {name} | passed |", table)
        self.assertEqual(rows["flux_dev, 50 in a row"]["milliseconds"], 120)
        self.assertEqual(rows["pixart_sigma, 20 in a row"]["total_milliseconds"], 580)
        # There is no compute-sanitizer among the programs that stand in.
        self.assertEqual(rows["compute-sanitizer memcheck"]["outcome"], "not measured")
        self.assertEqual(rows["several cards over NCCL"]["detail"], "it needs 2 cards; 1 are here")
        files = self.archive()
        self.assertIn("all cases passed", "".join(text for name, text in files.items() if name.endswith("stdout")))
        self.assertTrue(any(name.endswith("first.png") for name in files))
        self.assertIn("What this archive holds", files["results.md"])

    def test_what_is_wrong_is_named_where_it_is_wrong_and_runs_again(self):
        done, rows, _ = self.visit(bug="batch,graph,operator,picture,layout,golden")
        self.assertEqual(done.returncode, 1, done.stdout)
        wrong = {name for name, row in rows.items() if row["outcome"] == "failed"}
        self.assertEqual(wrong, {*(f"batch contract, image {seed}" for seed in range(1, 5)), "graphs against the same work without",
                                 "values of operators against fp64", "picture against the CPU, fp32",
                                 "picture against the CPU, bf16", "certificate of ring=2",
                                 *(name for name in rows if name.startswith("goldens of"))})
        self.assertEqual({name for name, row in rows.items() if "again" in row}, wrong)

    def test_where_every_row_fails_the_archive_holds_what_each_said_and_what_helped(self):
        _, rows, table = self.visit(bug="all:off")
        self.assertEqual(rows["first image"]["outcome"], "failed")
        again = {attempt["name"]: attempt["outcome"] for attempt in rows["first image"]["again"]}
        self.assertEqual(again, {"without graphs": "passed", "without registration": "failed",
                                 "without expandable segments": "failed", "with blocking launches": "failed"})
        self.assertIn("without graphs: passed; without registration: failed", table)
        files = self.archive()
        of_row = [name for name in files if "first-image" in name and name.endswith("stderr")]
        self.assertEqual(len(of_row), 5)
        self.assertIn("an illegal memory access was encountered", files[of_row[0]])
        self.assertIn("half of an answer", files[of_row[0].replace("stderr", "stdout")])

    def test_several_cards_are_held_to_what_they_do_together(self):
        done, rows, _ = self.visit(cards=8)
        self.assertEqual(rows["certificate of ring=2 over NCCL"]["detail"], "certified over nccl", done.stdout)
        self.assertEqual(rows["ulysses=8 of flux_dev against one card"]["detail"], "5.00x, at least 4.2x")
        self.assertLess(rows["a rank of ulysses=8 is killed"]["seconds"], 60)
        _, rows, _ = self.visit(cards=2)
        for name, needed in (("certificate of ulysses=4 over NCCL", 4), ("flux_dev at 1024x1024, ulysses=8", 8),
                             ("ulysses=4 of flux_dev against one card", 4)):
            self.assertEqual((rows[name]["outcome"], rows[name]["detail"]),
                             ("not measured", f"it needs {needed} cards; 2 are here"))

    def test_what_several_cards_do_wrong_is_named(self):
        for bug, cards, wrong in (("host,layout,slow", 8, ("certificate of cfg=2 over NCCL", "certificate of ring=2 over NCCL",
                                                           "ulysses=8 of flux_dev against one card")),
                                  ("gone", 2, ("a rank of ulysses=2 is killed",))):
            done, rows, _ = self.visit("--layouts", "--golden", "tests/golden", bug=bug, cards=cards)
            self.assertEqual(done.returncode, 1)
            for name in wrong:
                self.assertEqual(rows[name]["outcome"], "failed", rows[name])

    def test_where_no_time_is_left_nothing_is_measured_and_the_archive_is_there(self):
        _, rows, _ = self.visit("--seconds", "0")
        self.assertEqual({row["outcome"] for row in rows.values()}, {"not measured"})
        self.archive()

    def test_a_program_that_takes_too_long_is_ended_and_has_failed(self):
        _, rows, _ = self.visit("--only", "flux_dev, 50 in a row", "--seconds", "25", bug="sleep")
        self.assertIn("not done after", rows["flux_dev, 50 in a row"]["detail"])
        self.archive()

    def test_an_interruption_leaves_the_archive(self):
        process = subprocess.Popen([SCRIPT, "--weights", "zeros", "--output", self.stem], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=ROOT, env=self.environment(bug="sleep"))
        for line in process.stdout:
            if "first image" in line:
                break
        process.send_signal(signal.SIGTERM)
        self.assertIn("it was interrupted", process.communicate(timeout=60)[1])
        self.assertEqual(process.returncode, 2)
        self.assertIn("ended early: it was interrupted", self.archive()["results.md"])

    def test_what_names_a_machine_or_a_person_is_removed(self):
        self.visit("--seconds", "2")
        text = "".join(self.archive().values())
        for secret in ("1652924000042", "c0ffee00-1111-2222-3333-444455556666"):
            self.assertNotIn(secret, text)
        self.visit("--keep-names", "--seconds", "0")
        self.assertIn("1652924000042", "".join(self.archive().values()))
        redact = Redaction({"USER": "marlowe", "HOME": "/data/marlowe"})
        said = redact("marlowe ran /data/marlowe/t at 10.1.2.3 and fe80::1:2 over aa:bb:cc:dd:ee:ff on 127.0.0.1, "
                      "driver 580.159.04, CUDA 13.0.2.1, at 06:07:08")
        self.assertEqual(said, "[name] ran ~/t at [address] and [address] over [address] on 127.0.0.1, "
                               "driver 580.159.04, CUDA [address], at 06:07:08")

    def test_where_it_cannot_run_it_says_why(self):
        for options, driver, said in (([], False, "no NVIDIA driver"), (["--device", "cuda:3"], True, "there is no GPU for cuda:3"),
                                      (["--device", "gpu"], True, "valid values are cuda and cuda:N"),
                                      (["--golden", "docs"], True, "holds no cases.json"),
                                      (["--model", "docs"], True, "holds no model_index.json")):
            done = self.script("--weights", "zeros", "--output", self.stem, *options, driver=driver)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(said, done.stderr)
        self.archive()  # of the first one

    def test_a_dry_run_lists_what_would_run_and_needs_no_gpu(self):
        done = self.script("--dry-run", driver=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for command in ("bench_shapes cuda flux_dev 50", "verify --layout pipe=2 --device cuda:0", "--tool racecheck"):
            self.assertIn(command, done.stdout)
        self.assertIn("--seconds", self.script("--help").stdout)

    def test_what_travels_to_a_gpu_machine_is_less_than_60_mib(self):
        files = self.script("--files").stdout.splitlines()
        for needed in ("CMakeLists.txt", "tests/golden/cases.json", "assets/emoji/model_index.json", "scripts/first_card.py"):
            self.assertIn(needed, files)
        size = sum((ROOT / file).stat().st_size for file in files if (ROOT / file).exists())
        self.assertLess(size, 60 << 20)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
