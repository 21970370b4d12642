"""`tessera pull` against a hub for the test (hub.py), which first has to satisfy the hub's own client, `hf download`.

pull_test.py TESSERA PYTHON: PYTHON has huggingface_hub."""

import json
import os
import pathlib
import random
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import hub as hubs
from proxy import Proxy

TESSERA, PYTHON = sys.argv[1:3]
DEADLINE = 120
NAME = "org/tiny.model"
PIECE = 16 << 20

WEIGHTS = random.Random(1).randbytes(2 * PIECE + 12345)


def model_files():
    index = {"_class_name": "FluxPipeline", "_diffusers_version": "0.42.1", "feature_extractor": [None, None],
             "transformer": ["diffusers", "FluxTransformer2DModel"], "vae": ["diffusers", "AutoencoderKL"],
             "tokenizer": ["transformers", "CLIPTokenizer"]}
    return {
        "LICENSE.md": b"You may.", "README.md": b"# A model\n", "model_index.json": json.dumps(index).encode(),
        "tiny.safetensors": b"the weights once more" * 1000, "picture.png": b"png" * 1000,
        "transformer/config.json": b"{}",
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors": WEIGHTS,
        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors": WEIGHTS[:50_000],
        "transformer/diffusion_pytorch_model.safetensors.index.json": b'{"weight_map": {}}',
        "vae/config.json": b'{"a": 1}', "vae/diffusion_pytorch_model.safetensors": WEIGHTS[:70_000],
        "vae/diffusion_pytorch_model.fp16.safetensors": WEIGHTS[:35_000],
        "vae/diffusion_pytorch_model.bin": WEIGHTS[:60_000], "tokenizer/vocab.json": b'{"a": 0}', "tokenizer/empty.txt": b"",
    }


LEFT_OUT = {"tiny.safetensors", "picture.png", "vae/diffusion_pytorch_model.fp16.safetensors",
            "vae/diffusion_pytorch_model.bin"}
BIG = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"


class PullTest(unittest.TestCase):
    def setUp(self):
        # In memory where that is possible: a pull waits for the disk many times.
        self.folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self.addCleanup(shutil.rmtree, self.folder)
        self.cache = self.folder / "hf/hub/models--org--tiny.model"

    def start_hub(self, files=None, **options):
        hub = hubs.Hub(NAME, files or model_files(), **options)
        self.addCleanup(hub.close)
        return hub

    def environment(self, hub, **more):
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        return {**kept, "HOME": str(self.folder), "HF_HOME": str(self.folder / "hf"), "HF_ENDPOINT": hub.url, **more}

    def start(self, hub, *arguments, limit=None, **more):
        prepare = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
        return subprocess.Popen([TESSERA, "pull", *arguments], env=self.environment(hub, **more), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=prepare)

    def pull(self, hub, *arguments, code=0, name=NAME, **more):
        process = self.start(hub, name, *arguments, **more)
        process.output, process.errors = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, code, process.output + process.errors)
        return process

    def run_client(self, hub, *command, **more):
        """Runs the hub's own client."""
        done = subprocess.run([PYTHON, "-m", *command], env=self.environment(hub, HF_HUB_DISABLE_TELEMETRY="1", **more),
                              capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def snapshot(self, commit=hubs.COMMIT):
        folder = self.cache / "snapshots" / commit
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def expected(self):
        return {path: content for path, content in model_files().items() if path not in LEFT_OUT}

    def assert_pulled(self):
        self.assertEqual(self.snapshot(), self.expected())
        self.assertEqual(sorted(path.name for path in (self.cache / "blobs").iterdir() if "." in path.name), [])

    def assert_nothing_visible(self):
        self.assertFalse((self.cache / "snapshots").exists())
        self.assertFalse((self.cache / "refs").exists())

    def wait_until(self, condition):
        deadline = time.monotonic() + DEADLINE
        pause = threading.Event()
        while not condition():
            self.assertLess(time.monotonic(), deadline, "what was waited for did not happen")
            pause.wait(0.01)

    def stall_big_file(self, hub):
        """The large file does not arrive whole, however long a test takes."""
        release = threading.Event()
        self.addCleanup(release.set)
        is_big = lambda handler: hubs.in_storage(handler) and hub.files[BIG].sha256 in handler.path
        hub.faults.append(hubs.times(99, is_big, hubs.stall_after(1_000_000, release)))

    def ranges(self, hub):
        return [headers["Range"] for server, _, _, headers in hub.requests if server == "storage" and "Range" in headers]

    # The hub of this test, and what other tools have of a download.

    def test_the_hubs_own_client_downloads_everything_from_this_hub(self):
        hub = self.start_hub(token="hf_secret", gated="auto")
        path = self.run_client(hub, "huggingface_hub.cli.hf", "download", NAME, "--quiet", HF_TOKEN="hf_secret").strip()
        self.assertEqual(pathlib.Path(path.splitlines()[-1].removeprefix("path=").strip()), self.cache / "snapshots" / hubs.COMMIT)
        self.assertEqual(self.snapshot(), model_files())

    def test_a_model_is_pulled_once_with_its_licence_and_other_tools_find_it(self):
        hub = self.start_hub()
        first = self.pull(hub)
        self.assert_pulled()
        self.assertEqual((self.cache / "refs/main").read_text(), hubs.COMMIT)
        self.assertIn(f"revision        main, commit {hubs.COMMIT}", first.output)
        self.assertIn("licence         apache-2.0; commercial use: yes", first.output)
        self.assertIn("login           not needed", first.output)
        self.assertIn("files           11 of 15, 32.1 MiB; to download: 32.1 MiB", first.output)
        self.assertEqual(len(self.ranges(hub)), 3, "pieces of the large file")
        self.assertTrue(all((self.cache / "snapshots" / hubs.COMMIT / path).is_symlink() for path in self.expected()))
        script = f"import huggingface_hub as h; print(h.snapshot_download('{NAME}', local_files_only=True))"
        done = subprocess.run([PYTHON, "-c", script], env=self.environment(hub), capture_output=True, text=True,
                              timeout=DEADLINE)
        self.assertEqual(done.stdout.strip(), str(self.cache / "snapshots" / hubs.COMMIT), done.stderr)
        listed = subprocess.run([TESSERA, "models", "--json"], env=self.environment(hub), capture_output=True, text=True,
                                timeout=DEADLINE).stdout
        self.assertIn(NAME, [json.loads(line)["name"] for line in listed.splitlines()])
        del hub.requests[:]
        self.assertIn("to download: nothing", self.pull(hub).output)
        self.assertEqual([path.partition("?")[0].rsplit("/", 1)[-1] for _, _, path, _ in hub.requests],
                         ["main", "model_index.json"])

    def test_the_hubs_own_client_downloads_only_what_a_pull_left_out(self):
        hub = self.start_hub()
        self.pull(hub, "--quiet")
        del hub.requests[:]
        self.run_client(hub, "huggingface_hub.cli.hf", "download", NAME, "--quiet")
        fetched = {path.partition("?")[0][1:] for server, _, path, _ in hub.requests if server == "storage"}
        self.assertEqual(fetched, {hub.files[path].sha256 for path in LEFT_OUT if hub.files[path].lfs})
        self.assertEqual(self.snapshot(), model_files())

    def test_a_dry_run_shows_size_and_licence_and_writes_nothing(self):
        hub = self.start_hub(licence="cc-by-nc-4.0")
        done = self.pull(hub, "--dry-run")
        self.assertIn("cc-by-nc-4.0; commercial use: no", done.output)
        self.assertFalse(self.cache.exists())

    def test_events_are_json_lines(self):
        events = [json.loads(line) for line in self.pull(self.start_hub(), "--json").output.splitlines()]
        self.assertEqual([events[0]["event"], events[-1]["event"]], ["pull", "pulled"])
        self.assertEqual(events[0]["missing_bytes"], sum(map(len, self.expected().values())))
        self.assertEqual(events[-1]["path"], str(self.cache / "snapshots" / hubs.COMMIT))

    def test_a_branch_or_tag_is_resolved_to_a_commit_and_recorded(self):
        hub = self.start_hub(commit="f" * 40)
        hub.refs["pr/1"] = "f" * 40
        self.pull(hub, "--revision", "pr/1")
        self.assertEqual((self.cache / "refs/pr/1").read_text(), "f" * 40)
        self.pull(hub, "--revision", "f" * 40)
        self.assertEqual([path.name for path in (self.cache / "refs").iterdir()], ["pr"])
        self.assertIn("revision is 'v9', which org/tiny.model does not have", self.pull(hub, "--revision", "v9", code=3).errors)
        self.assertIn("revision is '../x'", self.pull(hub, "--revision", "../x", code=2).errors)

    def test_a_mirror_without_the_hubs_headers_and_without_ranges_works(self):
        hub = self.start_hub()
        hub.plain_mirror, hub.ranges = True, False
        hub.faults.append(hubs.times(1, lambda handler: "/tree/" in handler.path, hubs.answer_with(404)))
        done = self.pull(hub)
        self.assert_pulled()
        self.assertIn("lists no digest for 3 files", done.errors)

    def test_a_mirror_that_lists_sizes_only_in_its_tree_works(self):
        hub = self.start_hub()
        hub.plain_mirror = True
        self.assertNotIn("no digest", self.pull(hub).errors)
        self.assert_pulled()

    # Access.

    def test_the_token_goes_to_the_endpoint_only_and_is_never_shown(self):
        hub = self.start_hub(token="hf_secret", gated="manual")
        done = self.pull(hub, HF_TOKEN="hf_secret")
        self.assert_pulled()
        self.assertIn("login           needed", done.output)
        sent = {server: {headers.get("Authorization") for name, _, _, headers in hub.requests if name == server}
                for server in ("front", "storage")}
        self.assertEqual(sent, {"front": {"Bearer hf_secret"}, "storage": {None}})
        self.assertNotIn("hf_secret", done.output + done.errors)
        files = [path for path in (self.folder / "hf").rglob("*") if path.is_file() and not path.is_symlink()]
        self.assertFalse([path for path in files if b"hf_secret" in path.read_bytes()])

    def test_the_token_of_the_hubs_login_is_used(self):
        hub = self.start_hub(token="hf_secret", gated="auto")
        (self.folder / "hf").mkdir()
        (self.folder / "hf/token").write_text("hf_secret\n")
        self.pull(hub)
        self.assert_pulled()

    def test_a_gated_model_says_where_to_accept_its_licence(self):
        hub = self.start_hub(token="hf_secret", gated="auto")
        done = self.pull(hub, code=3)
        self.assertIn(f"the licence of {NAME} has to be accepted: open {hub.url}/{NAME}", done.errors)
        self.assertIn("HF_TOKEN", done.errors)
        self.assertFalse(self.cache.exists())
        self.assertIn("refuses the access token", self.pull(hub, code=3, HF_TOKEN="hf_wrong").errors)
        self.assertNotIn("hf_wrong", self.pull(hub, code=3, HF_TOKEN="hf_wrong").errors)

    def test_a_model_that_is_not_there_is_said_to_be(self):
        self.assertIn("there is no model of org/other", self.pull(self.start_hub(), code=3, name="org/other").errors)
        done = self.pull(self.start_hub(), code=2, name="flux")
        self.assertIn("model is 'flux'; valid is ORG/NAME", done.errors)
        self.assertIn("did you mean black-forest-labs/FLUX.2-klein-4B", done.errors)
        self.assertIn("HF_ENDPOINT is 'ftp://x'", self.pull(self.start_hub(), code=2, HF_ENDPOINT="ftp://x").errors)

    def test_an_unsupported_family_is_named_before_anything_is_downloaded(self):
        files = {**model_files(), "model_index.json": b'{"_class_name": "StableDiffusionXLPipeline", "vae": ["d", "V"]}'}
        hub = self.start_hub(files)
        self.assertIn("it is a model of Stable Diffusion XL, which Tessera does not run", self.pull(hub, code=3).errors)
        self.assertEqual(len(hub.requests), 2)
        self.assertFalse(self.cache.exists())

    def test_https_through_a_proxy_with_a_certificate_of_its_own(self):
        hub = self.start_hub(lfs_from=1 << 40)
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=hub.test", "-addext",
                        "subjectAltName=DNS:hub.test"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        hub.front.socket = context.wrap_socket(hub.front.socket, server_side=True)
        proxy = Proxy(hub.front.server_port)
        self.addCleanup(proxy.close)
        more = {"HF_ENDPOINT": "https://hub.test", "HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"}
        self.assertIn("SSL_CERT_FILE", self.pull(hub, code=3, **more).errors)
        self.pull(hub, SSL_CERT_FILE=str(certificate), **more)
        self.assert_pulled()
        self.assertEqual(set(proxy.targets), {"hub.test:443"})

    # What a list of files may not say.

    def test_names_that_lead_elsewhere_and_links_are_refused(self):
        for name in ("../escape", "/etc/escape", "vae/../../escape", "vae/\x00"):
            hub = self.start_hub({"model_index.json": b"{}"})
            hub.listed = [{"rfilename": name, "size": 1, "blobId": "0" * 40}]
            self.assertIn("no relative path of plain names", self.pull(hub, code=3).errors)
        hub = self.start_hub()
        hub.plain_mirror = True
        tree = hub.tree()
        tree[-1]["type"] = "symlink"
        hub.tree = lambda: tree
        self.assertIn("neither a file nor a folder", self.pull(hub, code=3).errors)
        self.assertFalse((self.folder / "hf").exists())

    def test_a_link_in_the_cache_is_not_followed(self):
        (self.cache / "snapshots" / hubs.COMMIT).mkdir(parents=True)
        (self.folder / "elsewhere").mkdir()
        (self.cache / "snapshots" / hubs.COMMIT / "vae").symlink_to(self.folder / "elsewhere")
        self.assertIn("is a link", self.pull(self.start_hub(), code=5).errors)
        self.assertEqual(list((self.folder / "elsewhere").iterdir()), [])

    # Faults.

    def test_cut_connections_are_continued_at_their_byte(self):
        hub = self.start_hub()
        hub.faults.append(hubs.times(4, hubs.in_storage, hubs.cut_after(100_000)))
        self.pull(hub)
        self.assert_pulled()
        self.assertTrue([each for each in self.ranges(hub) if int(each[6:].split("-")[0]) % PIECE != 0])

    def test_a_wrong_length_is_an_error(self):
        hub = self.start_hub()
        longer = hubs.File(model_files()["vae/config.json"] + b"  ", lfs=False)
        fault = lambda handler: handler.reply_content(longer)
        hub.faults.append(hubs.times(9, lambda handler: handler.path.endswith("vae/config.json"), lambda h: fault(h) or True))
        self.assertIn("has 10 bytes at 127.0.0.1 and must have 8", self.pull(hub, code=3).errors)
        self.assert_nothing_visible()

    def test_a_wrong_digest_is_an_error_and_the_next_pull_starts_afresh(self):
        for path in ("vae/diffusion_pytorch_model.safetensors", "vae/config.json"):
            shutil.rmtree(self.cache, ignore_errors=True)
            hub = self.start_hub()
            content = hub.files[path].content
            hub.files[path].content = bytes([content[0] ^ 1]) + content[1:]
            errors = self.pull(hub, code=3).errors
            self.assertIn(f"'{path}' has the {'SHA-256' if hub.files[path].lfs else 'git SHA-1'} ", errors)
            self.assert_nothing_visible()
        self.pull(self.start_hub())
        self.assert_pulled()

    def test_redirects_in_circles_and_to_other_protocols_are_errors(self):
        for location, text in (("/same?again", "redirects in circles"), ("file:///etc/passwd", "cannot be used")):
            hub = self.start_hub()
            hub.faults.append(hubs.times(99, lambda handler: "config.json" in handler.path or "again" in handler.path,
                                         hubs.answer_with(302, Location=location)))
            self.assertIn(text, self.pull(hub, code=3).errors)

    def test_401_in_the_middle_of_a_download_says_what_is_missing(self):
        hub = self.start_hub()
        hub.faults.append(hubs.times(99, lambda handler: handler.path.endswith("vae/config.json"), hubs.answer_with(401)))
        self.assertIn("set HF_TOKEN", self.pull(hub, code=3).errors)
        self.assert_nothing_visible()

    def test_an_address_that_expires_in_the_middle_of_a_file_is_resolved_again(self):
        for status in (403, 400):
            with self.subTest(status=status):
                hub = self.start_hub()
                shutil.rmtree(self.cache, ignore_errors=True)
                cut = threading.Event()

                def cut_and_expire(handler):
                    cut.set()
                    return hubs.cut_after(1_000_000)(handler)

                sha = hub.files[BIG].sha256
                is_big = lambda handler: hubs.in_storage(handler) and sha in handler.path
                # The last piece has fewer bytes than a cut leaves, so a cut would not change it.
                is_first_piece = lambda handler: is_big(handler) and handler.headers["Range"].startswith("bytes=0-")
                hub.faults.append(hubs.times(3, lambda handler: is_big(handler) and cut.is_set(), hubs.answer_with(status)))
                hub.faults.append(hubs.times(1, is_first_piece, cut_and_expire))
                self.pull(hub)
                self.assert_pulled()
                self.assertIn(1_000_000, [int(each[6:].split("-")[0]) % PIECE for each in self.ranges(hub)])
                resolved = [path for server, _, path, _ in hub.requests if server == "front" and path.endswith(BIG)]
                self.assertGreater(len(resolved), 1)

    def test_an_address_that_is_always_refused_is_an_error(self):
        hub = self.start_hub()
        hub.faults.append(hubs.times(999, hubs.in_storage, hubs.answer_with(403)))
        self.assertIn("refuses the file", self.pull(hub, code=3).errors)

    def test_429_and_503_are_tried_again_after_the_pause_that_is_asked_for(self):
        hub = self.start_hub()
        arrived = []
        def busy(handler):
            arrived.append(time.monotonic())
            return hubs.answer_with(429, Retry_After="1")(handler)
        hub.faults.append(hubs.times(1, lambda handler: "/api/" in handler.path, busy))
        hub.faults.append(hubs.times(2, hubs.in_storage, hubs.answer_with(503)))
        done = self.pull(hub)
        self.assert_pulled()
        self.assertIn("answers 429", done.errors)
        again = [path for _, _, path, _ in hub.requests if "/api/" in path]
        self.assertEqual(len(again), 2)
        hub.faults.append(hubs.times(1, lambda handler: "/api/" in handler.path, hubs.answer_with(429, Retry_After="9999")))
        self.assertIn("asks for a pause of 9999 seconds", self.pull(hub, code=6).errors)

    def test_a_connection_that_stalls_is_made_again(self):
        hub = self.start_hub()
        release = threading.Event()
        self.addCleanup(release.set)
        hub.faults.append(hubs.times(1, hubs.in_storage, hubs.stall_after(1000, release)))
        self.assertIn("timed out", self.pull(hub, "--timeout", "1").errors)
        self.assert_pulled()

    def test_a_full_disk_is_an_error_and_what_arrived_is_used_later(self):
        hub = self.start_hub()
        errors = self.pull(hub, code=5, limit=PIECE).errors
        self.assertIn("no space is left", errors)
        self.assert_nothing_visible()
        self.pull(hub)
        self.assert_pulled()

    def test_a_killed_pull_is_continued(self):
        hub = self.start_hub()
        self.stall_big_file(hub)
        process = self.start(hub, NAME)
        part = self.cache / "blobs" / (hub.files[BIG].sha256 + ".tessera.progress")
        # Of the first piece: the last one may be there as a whole.
        self.wait_until(lambda: part.exists() and sum(part.read_bytes()[16:20]) > 0)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE)
        self.assert_nothing_visible()
        hub.faults.clear()
        del hub.requests[:]
        self.pull(hub)
        self.assert_pulled()
        starts = [int(each[6:].split("-")[0]) for each in self.ranges(hub)]
        self.assertTrue([start for start in starts if start % PIECE != 0], starts)

    def test_an_interrupted_pull_ends_with_code_130_and_is_continued(self):
        hub = self.start_hub()
        self.stall_big_file(hub)
        process = self.start(hub, NAME)
        self.wait_until(lambda: self.ranges(hub))
        process.send_signal(signal.SIGINT)
        self.assertIn("interrupted", process.communicate(timeout=DEADLINE)[1])
        self.assertEqual(process.returncode, 130)
        hub.faults.clear()
        self.pull(hub)
        self.assert_pulled()

    def test_bytes_that_a_power_cut_lost_are_downloaded_again(self):
        hub = self.start_hub()
        blobs = self.cache / "blobs"
        blobs.mkdir(parents=True)
        file = hub.files["vae/diffusion_pytorch_model.safetensors"]
        (blobs / (file.sha256 + ".tessera.incomplete")).write_bytes(bytes(len(file.content)))
        (blobs / (file.sha256 + ".tessera.progress")).write_bytes(
            b"tessera1" + len(file.content).to_bytes(8, "little") + (1000).to_bytes(4, "little"))
        self.assertIn("is damaged; downloading it again", self.pull(hub).errors)
        self.assert_pulled()

    def test_two_pulls_at_once_do_not_harm_each_other(self):
        hub = self.start_hub()
        processes = [self.start(hub, NAME) for _ in range(2)]
        for process in processes:
            output = process.communicate(timeout=DEADLINE)
            self.assertEqual(process.returncode, 0, output)
        self.assert_pulled()
        sha = hub.files[BIG].sha256
        self.assertEqual(len([1 for server, _, path, _ in hub.requests if server == "storage" and sha in path]), 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
