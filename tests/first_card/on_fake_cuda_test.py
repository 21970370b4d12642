#!/usr/bin/env python3
"""scripts/gpu-suite.sh --nccl with the real programs on two cards of the fake CUDA: from end to end, and no time counts.

on_fake_cuda_test.py PROGRAMS LIBRARY: the folder of the programs, and the fake.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS, LIBRARY = sys.argv[1:3]


class OnFakeCudaTest(unittest.TestCase):
    def test_two_cards_run_everything_that_two_cards_can(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, LD_PRELOAD=LIBRARY, FAKE_CUDA_DEVICES="2", TESSERA_GPU_SUITE_PROGRAMS=PROGRAMS,
                               XDG_RUNTIME_DIR=folder)
            done = subprocess.run([ROOT / "scripts/gpu-suite.sh", "--nccl", "--steps", "4", "--golden", "tests/golden",
                                   "--output", f"{folder}/report"], capture_output=True, text=True, cwd=ROOT, env=environment)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            rows = {row["name"]: row for row in json.loads(pathlib.Path(folder, "report.json").read_text())["rows"]}
        for layout in ("cfg=2", "ulysses=2", "ring=2", "tensor=2", "pipe=2", "pipe=2,patches=2,warmup=1"):
            self.assertEqual(rows[f"certificate of {layout} over NCCL"]["outcome"], "passed", rows)
        for name in ("flux_dev at 1024x1024, serial", "ulysses=2 of flux_dev against one card",
                     "cfg=2 of sd3_medium against one card", "a rank of ulysses=2 is killed"):
            self.assertEqual(rows[name]["outcome"], "not a measurement", rows[name])
        self.assertIn("its job was made", rows["a rank of ulysses=2 is killed"]["detail"])
        for name in ("certificate of ulysses=4 over NCCL", "ulysses=8 of flux_dev against one card"):
            self.assertEqual(rows[name]["outcome"], "not measured", rows[name])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
