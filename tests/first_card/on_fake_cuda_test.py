#!/usr/bin/env python3
"""Runs scripts/first-card.sh with the real programs on the fake CUDA, from end to end; times do not count.

on_fake_cuda_test.py PROGRAMS LIBRARY: the folder of the programs, and the fake.
"""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS, LIBRARY = sys.argv[1:3]
# Every layout, and models of full size, take minutes of a processor: only with TESSERA_LONG=1.
LONG = os.environ.get("TESSERA_LONG") == "1"


class OnFakeCudaTest(unittest.TestCase):
    def visit(self, *options, **cards):
        """The rows by name, and the names of the archive's files."""
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, LD_PRELOAD=LIBRARY, TESSERA_FIRST_CARD_PROGRAMS=PROGRAMS, XDG_RUNTIME_DIR=folder,
                               TESSERA_LIBTORCH=str(ROOT / ".deps/libtorch"), **cards)
            # On a busy machine loading alone takes minutes.
            done = subprocess.run([ROOT / "scripts/first-card.sh", "--weights", "zeros", "--steps", "4", "--seconds", "1800",
                                   "--golden", "tests/golden", "--output", f"{folder}/report", *options],
                                  capture_output=True, text=True, cwd=ROOT, env=environment)
            rows = {row["name"]: row for row in json.loads(pathlib.Path(folder, "report.json").read_text())["rows"]}
            with tarfile.open(f"{folder}/report.tar.gz") as tar:
                names = tar.getnames()
        return done, rows, names

    def test_two_cards_run_everything_that_two_cards_can(self):
        layouts = ("ring=2", "pipe=2,patches=2,warmup=1")
        measured = ("a rank of ulysses=2 is killed",)
        absent = ("certificate of ulysses=4 over NCCL",)
        only = "ring=2 over NCCL|ulysses=4 over NCCL|warmup=1 over NCCL|killed"
        if LONG:
            layouts += ("cfg=2", "ulysses=2", "tensor=2", "pipe=2")
            measured += ("flux_dev at 1024x1024, serial", "ulysses=2 of flux_dev against one card",
                         "cfg=2 of sd3_medium against one card")
            absent = ("certificate of ulysses=4 over NCCL", "ulysses=8 of flux_dev against one card")
            only = "over NCCL|flux_dev at|sd3_medium at|against one card|killed"
        done, rows, names = self.visit("--only", only, FAKE_CUDA_DEVICES="2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for layout in layouts:
            self.assertEqual(rows[f"certificate of {layout} over NCCL"]["outcome"], "passed", rows)
        for name in measured:
            self.assertEqual(rows[name]["outcome"], "not a measurement", rows[name])
        self.assertIn("its job was made", rows["a rank of ulysses=2 is killed"]["detail"])
        for name in absent:
            self.assertEqual(rows[name]["outcome"], "not measured", rows[name])
        self.assertTrue(any("certificate-of-ring-2-over-NCCL/stderr" in name for name in names), names)

    def test_one_card_makes_images_and_trains_at_full_size(self):
        done, rows, _ = self.visit("--only", "doctor|first image|four images|CPU$" + ("|full size|LoRA" if LONG else ""))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(rows["first image"]["outcome"], "passed")
        for name in ("FLUX.1-dev of full size", "LoRA steps of FLUX.1-dev at 512x512") if LONG else ():
            self.assertEqual(rows[name]["outcome"], "not a measurement", rows[name])

    def test_a_fault_in_a_row_is_kept_with_what_the_row_said(self):
        done, rows, names = self.visit("--only", "doctor|first image|four images", FAKE_CUDA_FAIL="cudaLaunchKernel:40")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(rows["first image"]["outcome"], "failed")
        self.assertEqual(len(rows["first image"]["again"]), 4)
        self.assertEqual(sum("first-image/stderr" in name for name in names), 5, names)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
