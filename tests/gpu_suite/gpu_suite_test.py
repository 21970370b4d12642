#!/usr/bin/env python3
"""scripts/gpu-suite.sh where there is no GPU: what it would do, what it makes of what programs say, and what travels."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE = ROOT / "scripts/gpu-suite.sh"

# All programs in one: each takes what it is from its name. A picture is its seed, and its group where the test says so.
STAND_IN = r"""#!/usr/bin/env python3
import http.server, json, os, pathlib, signal, subprocess, sys
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
bug = os.environ.get("STAND_IN_BUG", "")

def picture(path, seed, together):
    data = f"pixels of {seed}{' in a batch' if together and bug == 'batch' else ''}".encode()
    if bug == "graph" and "TESSERA_GRAPHS" not in os.environ:
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
        if restarts == 0 or bug != "gone":
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
                state = "refused" if bug == "gone" and restarts else "ready"
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

if name == "nvidia-smi":
    print("\n".join(["A card, 580.1, 81559 MiB"] * int(os.environ.get("STAND_IN_CARDS", 1))))
elif name == "tessera" and arguments[0] == "generate":
    count, seed = int(option("--count", 1)), int(option("--seed", 1))
    if bug == "device":
        sys.exit("the CUDA plug-in is not installed")
    for number in range(seed, seed + count):
        picture(pathlib.Path(option("--output", "").replace("{seed}", str(number))), number, count > 1)
elif name == "tessera" and arguments[0] == "replay":
    print(json.dumps({"mean_squared_difference": 900 if bug == "picture" else 0.01}))
elif name == "tessera" and arguments[0] == "verify":
    if bug == "layout" and "ring" in option("--layout", ""):
        sys.exit("the images differ")
    print(json.dumps({"communicator": "host" if bug == "host" else "nccl"}))
elif name == "tessera" and arguments[0] == "bench":
    cards = {"serial": 1, "": 1, "ulysses=8": 4 if bug == "slow" else 5}.get(option("--layout", ""), 1.95)
    if option("--layout", "") == "ulysses=4":
        cards = 3
    print(json.dumps({f"{part}_seconds{end}": 0.01 / cards for part, end in (("step", "_median"), ("decode", ""), ("text", ""), ("load", ""))}))
elif name == "tessera" and arguments[0] == "serve":
    serve()
elif name == "tessera-worker":
    signal.pause()
elif name == "tessera-golden":
    print("1 case failed" if bug == "golden" else "all cases passed")
    sys.exit(bug == "golden")
elif name == "bench_operators":
    for dtype in ("bf16", "fp32"):
        print(json.dumps({"operator": "linear", "dtype": dtype, "error": 1 if bug == "operator" else 1e-9, "tolerance": 1e-6}))
elif name == "bench_shapes":
    figures = {"flux_dev": {"milliseconds": 120, "teraflops_per_second": 620}, "pixart_sigma": {"milliseconds": 29},
               "hunyuandit": {"milliseconds": 51}, "autoencoder": {"milliseconds": 80},
               "matmul": {"milliseconds": 1.5, "teraflops_per_second": 800 if bug == "rate" else 690}}[arguments[1]]
    print(json.dumps({"shape": arguments[1], **figures}))
"""


class GpuSuiteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("tessera", "tessera-worker", "tessera-golden", "bench_operators", "bench_shapes", "nvidia-smi"):
            program = self.folder / name
            program.write_text(STAND_IN)
            program.chmod(0o755)

    def suite(self, *options, bug="", driver=True, cards=1):
        path = f"{self.folder}:{os.environ['PATH']}" if driver else os.environ["PATH"]
        environment = dict(os.environ, PATH=path, TESSERA_GPU_SUITE_PROGRAMS=str(self.folder), STAND_IN_BUG=bug,
                           STAND_IN_CARDS=str(cards))
        return subprocess.run([SUITE, *options], capture_output=True, text=True, cwd=ROOT, env=environment)

    def run_all(self, bug="", *options):
        stem = str(self.folder / "report")
        done = self.suite("--output", stem, *options, bug=bug)
        rows = json.loads(pathlib.Path(stem + ".json").read_text())["rows"]
        table = pathlib.Path(stem + ".md").read_text()
        return done, {row["name"]: row for row in rows}, table

    def failed(self, bug):
        done, rows, _ = self.run_all(bug)
        self.assertEqual(done.returncode, 1, done.stdout)
        return [name for name, row in rows.items() if row["outcome"] == "failed"]

    def test_everything_that_is_here_is_measured_and_passes(self):
        done, rows, table = self.run_all("", "--model", "assets/emoji")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name in ("operators against fp64", "goldens of golden transformers", "run 2 of one seed, bf16",
                     "batch contract, image 4", "certificate of tensor=2", "flux_dev, 50 in a row",
                     "step of flux_dev against matmul", "autoencoder, 10 in a row", "bench of the embedded model",
                     "bench of emoji"):
            self.assertEqual(rows[name]["outcome"], "passed", rows[name])
            self.assertIn(f"| {name} | passed |", table)
        self.assertEqual(rows["flux_dev, 50 in a row"]["milliseconds"], 120)
        self.assertEqual(rows["pixart_sigma, 20 in a row"]["milliseconds"], 580)
        # There is no compute-sanitizer among the programs that stand in.
        self.assertEqual(rows["compute-sanitizer memcheck"]["outcome"], "not measured")

    def test_what_is_wrong_is_told_where_it_is_wrong(self):
        self.assertEqual(self.failed("batch"), [f"batch contract, image {seed}" for seed in range(1, 5)])
        self.assertEqual(self.failed("graph"), ["graphs against the same work without"])
        self.assertEqual(self.failed("operator"), ["operators against fp64"])
        self.assertEqual(self.failed("picture"), ["picture against the CPU, fp32", "picture against the CPU, bf16"])
        self.assertEqual(self.failed("layout"), ["certificate of ring=2"])
        self.assertEqual(self.failed("rate"), ["step of flux_dev against matmul"])
        self.assertEqual(len(self.failed("golden")), 5)

    def run_nccl(self, cards, bug="", *options):
        stem = str(self.folder / "report")
        done = self.suite("--nccl", "--output", stem, *options, bug=bug, cards=cards)
        return done, {row["name"]: row for row in json.loads(pathlib.Path(stem + ".json").read_text())["rows"]}

    def test_several_cards_are_held_to_what_they_do_together(self):
        done, rows = self.run_nccl(8)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual({row["outcome"] for row in rows.values()}, {"passed"}, rows)
        self.assertEqual(rows["certificate of ring=2 over NCCL"]["detail"], "certified over nccl")
        self.assertEqual(rows["ulysses=8 of flux_dev against one card"]["detail"], "5.00x, at least 4.2x")
        self.assertLess(rows["a rank of ulysses=8 is killed"]["seconds"], 60)

    def test_what_needs_more_cards_is_not_measured(self):
        done, rows = self.run_nccl(2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name, needed in (("certificate of ulysses=4 over NCCL", 4), ("flux_dev at 1024x1024, ulysses=8", 8),
                             ("ulysses=4 of flux_dev against one card", 4)):
            self.assertEqual((rows[name]["outcome"], rows[name]["detail"]),
                             ("not measured", f"it needs {needed} cards; 2 are here"))
        for name in ("ulysses=2 of flux_dev against one card", "a rank of ulysses=2 is killed"):
            self.assertEqual(rows[name]["outcome"], "passed", rows[name])
        self.assertIn("--nccl needs two GPUs", self.suite("--nccl", cards=1).stderr)

    def test_what_several_cards_do_wrong_is_told(self):
        for bug, wrong in (("host", "certificate of cfg=2 over NCCL"), ("layout", "certificate of ring=2 over NCCL"),
                           ("slow", "ulysses=8 of flux_dev against one card")):
            done, rows = self.run_nccl(8, bug)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(rows[wrong]["outcome"], "failed", rows[wrong])
        done, rows = self.run_nccl(2, "gone")
        self.assertEqual(rows["a rank of ulysses=2 is killed"]["outcome"], "failed", rows)

    def test_where_no_time_is_left_nothing_is_measured(self):
        _, rows, _ = self.run_all("", "--seconds", "0")
        self.assertEqual({row["outcome"] for row in rows.values()}, {"not measured"})

    def test_a_program_that_takes_too_long_has_failed(self):
        loader = importlib.util.spec_from_file_location("gpu_suite", ROOT / "scripts/gpu-suite.py")
        module = importlib.util.module_from_spec(loader)
        loader.loader.exec_module(module)
        suite = types.SimpleNamespace(has=lambda _: True, seconds_left=lambda: 3600, work=self.folder, environment=None, cards=1)
        row = module.Check("asleep", ["sleep", "3600"], module.by_status, seconds=0.1).run(suite)
        self.assertEqual(row["outcome"], "failed")
        self.assertIn("not done after", row["detail"])

    def test_where_it_cannot_run_it_says_why(self):
        for options, bug, driver, said in (([], "", False, "no NVIDIA driver"), ([], "device", True, "the CUDA plug-in"),
                                           (["--device", "cuda:3"], "", True, "there is no GPU for cuda:3"),
                                           (["--device", "gpu"], "", True, "valid values are cuda and cuda:N"),
                                           (["--golden", "docs"], "", True, "holds no cases.json"),
                                           (["--model", "docs"], "", True, "holds no model_index.json")):
            done = self.suite(*options, bug=bug, driver=driver)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(said, done.stderr)

    def test_a_dry_run_lists_what_would_run_and_needs_no_gpu(self):
        done = self.suite("--dry-run", driver=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for command in ("bench_shapes cuda flux_dev 50", "verify --layout pipe=2 --device cuda:0", "--tool racecheck"):
            self.assertIn(command, done.stdout)
        self.assertIn("--seconds", self.suite("--help").stdout)

    def test_what_travels_to_a_gpu_machine_is_less_than_60_mib(self):
        files = self.suite("--files").stdout.splitlines()
        for needed in ("CMakeLists.txt", "tests/golden/cases.json", "assets/emoji/model_index.json", "scripts/gpu-suite.py"):
            self.assertIn(needed, files)
        size = sum((ROOT / file).stat().st_size for file in files if (ROOT / file).exists())
        self.assertLess(size, 60 << 20)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
