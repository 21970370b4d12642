"""SGLang's load client for diffusion servers, as its wheel has it, against a server without configuration.

sglang_load_test.py TESSERA WHEEL

Three modules of SGLang that the client imports need GPU libraries. They print and log, and are replaced here.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

from fake_server import Server

TESSERA, WHEEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
BENCHMARKS = "sglang/multimodal_gen/benchmarks/"
REPLACED = {
    "sglang/multimodal_gen/runtime/utils/logging_utils.py":
        "import logging\n"
        "def init_logger(name): return logging.getLogger(name)\n"
        "def configure_logger(arguments): logging.basicConfig(level=logging.INFO)\n",
    "sglang/multimodal_gen/test/test_utils.py":
        "def print_divider(length): print('-' * length)\n"
        "def print_value_formatted(name, value): print(name, value)\n",
    "sglang/srt/utils/network.py":
        "class NetworkAddress:\n"
        "    def __init__(self, host, port): self.url = f'http://{host}:{port}'\n"
        "    def to_url(self): return self.url\n",
}


class LoadTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(root, [name for name in wheel.namelist() if name.startswith(BENCHMARKS)])
        for name, text in REPLACED.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        cls.server = Server(TESSERA, has_config=False)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def load(self, *options):
        result = pathlib.Path(self.folder.name, "result.json")
        run = subprocess.run(
            [sys.executable, "-m", "sglang.multimodal_gen.benchmarks.bench_serving", "--host", "127.0.0.1", "--port",
             str(self.server.ports["http"]), "--dataset", "random", "--task", "text-to-image", "--num-prompts", "6", "--max-concurrency",
             "3", "--disable-tqdm", "--output-file", result, *options],
            cwd=self.folder.name, capture_output=True, text=True, timeout=300,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"})
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return json.loads(result.read_text()), run.stdout + run.stderr

    def test_every_request_of_the_default_model_is_answered(self):
        result, text = self.load()
        self.assertEqual((result["completed_requests"], result["failed_requests"]), (6, 0), text)

    def test_several_outputs_a_size_and_steps(self):
        result, text = self.load("--num-outputs-per-prompt", "2", "--width", "64", "--height", "64",
                                 "--num-inference-steps", "3")
        self.assertEqual((result["completed_outputs"], result["failed_requests"]), (12, 0), text)

    def test_its_own_words_for_the_quality(self):
        for quality in ("exact", "lossless"):
            result, text = self.load("--extra-body", json.dumps({"quality": quality}))
            self.assertEqual((result["completed_requests"], result["failed_requests"]), (6, 0), text)


unittest.main(argv=sys.argv[:1])
