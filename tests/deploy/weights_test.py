"""fill-weights.sh, which the Job of the weights runs, against a server of files."""

import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import unittest

from manifests import KUBERNETES

SCRIPT = KUBERNETES / "base/weights/fill-weights.sh"
FILES = {"model_index.json": b"{}\n", "transformer/part-1.safetensors": bytes(range(256)) * 64}


class Source(http.server.BaseHTTPRequestHandler):
    """Serves server.files, from the beginning of a Range, and records the requests."""

    def do_GET(self):
        self.server.asked.append((self.path[1:], self.headers.get("Range"), self.headers.get("Authorization")))
        content = self.server.files.get(self.path[1:])
        if content is None:
            return self.send_error(404)
        start = int(self.headers.get("Range", "bytes=0-")[len("bytes="):-1])
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def log_message(self, *_):
        pass


class WeightsTest(unittest.TestCase):
    def setUp(self):
        self.source = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Source)
        self.source.files, self.source.asked = dict(FILES), []
        thread = threading.Thread(target=self.source.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.source.server_close)
        self.addCleanup(self.source.shutdown)
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.work)
        self.folder = self.work / "model"
        self.list = self.work / "weights.sha256"
        self.write_list(FILES)

    def write_list(self, files):
        lines = [f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in files.items()]
        self.list.write_text("# of a model\n" + "".join(lines))

    def fill(self, **environment):
        return subprocess.run(
            ["sh", str(SCRIPT), str(self.folder), str(self.list)], capture_output=True, text=True,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(self.work), "WEIGHTS_RETRY_DELAY": "0",
                 "WEIGHTS_URL": f"http://127.0.0.1:{self.source.server_port}/", **environment})

    def assertFilled(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        for path, content in FILES.items():
            self.assertEqual((self.folder / path).read_bytes(), content)
        self.assertEqual(sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()),
                         sorted([".complete", *FILES]))

    def put(self, path, content):
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)

    def test_an_empty_folder_has_every_file_afterwards(self):
        self.assertFilled(self.fill())
        self.assertEqual([path for path, _, _ in self.source.asked], list(FILES))

    def test_what_is_there_is_verified_and_not_fetched_again(self):
        self.fill()
        self.source.asked.clear()
        self.assertFilled(self.fill())
        self.assertEqual(self.source.asked, [])

    def test_a_file_of_other_content_is_replaced(self):
        self.fill()
        self.put("model_index.json", b"{ }\n")
        self.source.asked.clear()
        self.assertFilled(self.fill())
        self.assertEqual([path for path, _, _ in self.source.asked], ["model_index.json"])

    def test_an_interrupted_download_goes_on_where_it_was(self):
        self.put("transformer/part-1.safetensors.part", FILES["transformer/part-1.safetensors"][:1000])
        self.assertFilled(self.fill())
        self.assertIn(("transformer/part-1.safetensors", "bytes=1000-", None), self.source.asked)

    def test_a_download_that_was_whole_is_not_fetched_again(self):
        self.put("transformer/part-1.safetensors.part", FILES["transformer/part-1.safetensors"])
        self.assertFilled(self.fill())
        self.assertEqual([path for path, _, _ in self.source.asked], ["model_index.json"])

    def test_the_beginning_of_another_file_is_dropped(self):
        for other in (b"x" * 1000, b"x" * 100000):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.put("transformer/part-1.safetensors.part", other)
            self.assertFilled(self.fill())

    def test_a_file_with_another_digest_is_refused_and_nothing_of_it_stays(self):
        self.fill()
        self.write_list({**FILES, "model_index.json": b"what was promised"})
        done = self.fill()
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"model_index.json has the digest {hashlib.sha256(FILES['model_index.json']).hexdigest()}", done.stderr)
        self.assertFalse((self.folder / ".complete").exists())
        self.assertFalse((self.folder / "model_index.json.part").exists())

    def test_a_file_that_the_source_lacks_is_named(self):
        del self.source.files["transformer/part-1.safetensors"]
        done = self.fill()
        self.assertEqual(done.returncode, 1)
        self.assertIn("transformer/part-1.safetensors cannot be downloaded", done.stderr)
        self.assertFalse((self.folder / ".complete").exists())

    def test_a_list_that_is_wrong_is_refused_before_anything_is_fetched(self):
        digest = "0" * 64
        for line in ("", "# nothing", f"{digest}  ../other", f"{digest}  /etc/passwd", f"{digest}  a/../../b", f"{digest}  -o",
                     f"{digest}  a b", "0000  short", f"{digest.replace('0', 'G')}  name"):
            with self.subTest(line=line):
                self.list.write_text(line + "\n")
                self.assertEqual(self.fill().returncode, 1)
                self.assertEqual(self.source.asked, [])

    def test_a_token_goes_to_the_source_and_into_no_list_of_processes(self):
        (self.work / "token").write_text("hf_secret")
        commands = self.work / "commands"
        (self.work / "bin").mkdir()
        (self.work / "bin/curl").write_text(f'#!/bin/sh\necho "$@" >>{commands}\nexec {shutil.which("curl")} "$@"\n')
        (self.work / "bin/curl").chmod(0o755)
        self.assertFilled(self.fill(WEIGHTS_TOKEN_FILE=str(self.work / "token"), PATH=f"{self.work}/bin:{os.environ['PATH']}"))
        self.assertEqual({token for _, _, token in self.source.asked}, {"Bearer hf_secret"})
        self.assertIn("--header", commands.read_text())
        self.assertNotIn("hf_secret", commands.read_text())


if __name__ == "__main__":
    unittest.main()
