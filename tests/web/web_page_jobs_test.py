#!/usr/bin/env python3
"""web_page_jobs_test.py TESSERA [TEST …]: jobs on the page of a real server with fake workers, in a real browser."""

import os
import pathlib
import sys
import unittest

from browser import wait_until
from page_case import PageCase

# Watches the progress of the job on the stage: every value that was shown, and whether a preview was.
OBSERVE = """
window.seen = { values: [], previews: new Set() };
new MutationObserver(() => {
  const bar = document.querySelector('#about .progress');
  if (bar) window.seen.values.push(Number(bar.getAttribute('aria-valuenow')));
  const picture = document.querySelector('#pictures [data-kind=preview] img');
  if (picture) window.seen.previews.add(picture.src);
}).observe(document.getElementById('stage'), { subtree: true, childList: true, attributes: true });
"""


class JobTest(PageCase):
    script = "step-time=20"

    def test_an_image_is_made_with_progress_and_previews(self):
        self.browser.run(OBSERVE)
        self.make("a red apple", num_inference_steps=12)
        values = self.browser.run("return window.seen.values")
        self.assertEqual(values, sorted(values))
        between = {value for value in values if 0 < value < 100}
        self.assertGreater(len(between), 2, values)
        self.assertGreater(self.browser.run("return window.seen.previews.size"), 0)
        job = self.jobs()[0]
        self.assertEqual((job["prompt"], job["num_inference_steps"]), ("a red apple", 12))
        # Its parameters are shown.
        parameters = self.browser.text(".parameters")
        for value in (job["model"], job["size"], job["seed"], 12):
            self.assertIn(str(value), parameters)
        self.assertEqual(self.browser.text("#announcements"), "1 image finished: a red apple")

    def test_places_in_the_queue_are_shown_and_a_job_is_cancelled(self):
        self.submit(prompt="a gated apple")
        self.browser.wait_for_text("#about .state", "Started")
        self.submit(prompt="second")
        self.browser.wait_for_text("#about .state", "Next in the queue")
        self.submit(prompt="third")
        self.browser.wait_for_text("#about .state", "1 image before it")
        self.browser.click("#cancel")
        self.browser.wait_for_text("#about .state", "Cancelled")
        self.assertEqual(self.jobs()[0]["status"], "cancelled")
        # One that runs, too.
        self.browser.click("#tiles li:last-child .tile")
        self.assertEqual(self.browser.text("#stage-title"), "a gated apple")
        self.browser.click("#cancel")
        self.browser.wait_for_text("#about .state", "Cancelled")
        self.gate.touch()
        self.browser.click("#tiles li:nth-child(2) .tile")
        self.wait_for_image("second")

    def test_several_images_of_one_job_are_shown(self):
        self.make("four apples", n=4)
        wait_until(
            "all are loaded",
            lambda: self.browser.run("return [...document.querySelectorAll('#pictures img')].filter((i) => i.naturalWidth).length") == 4,
        )
        seeds = [image["seed"] for image in self.jobs()[0]["images"]]
        self.browser.click("#pictures .figure:nth-child(3)")
        self.assertIn(str(seeds[2]), self.browser.text(".parameters"))

    def test_a_job_that_fails_says_why(self):
        self.submit(prompt="[fail]")
        self.browser.wait_for_text("#about .state", "Failed")
        self.assertTrue(self.browser.text("#about .problem"))

    def test_a_warning_is_shown(self):
        self.make("an apple", negative_prompt="a worm")
        self.assertIn("negative prompt is not used", self.browser.text("#about .warning"))

    def test_the_gallery_is_there_after_a_reload_and_holds_this_browsers_jobs_alone(self):
        self.finished(prompt="of another client")
        self.make("first")
        self.make("second")
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("second")
        self.assertEqual(self.tiles(), 2)
        loaded = "return [...document.querySelectorAll('#tiles img')].filter((i) => i.naturalWidth).length"
        wait_until("the tiles are loaded", lambda: self.browser.run(loaded) == 2)
        self.browser.click("#tiles li:last-child .tile")
        self.wait_for_image("first")
        self.browser.click("#remove")
        wait_until("one is gone", lambda: self.tiles() == 1)
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("second")
        self.assertEqual(self.tiles(), 1)

    def test_a_job_under_way_is_watched_again_after_a_reload(self):
        self.submit(prompt="a gated apple")
        self.browser.wait_for_text("#about .state", "Started")
        self.browser.reload()
        self.wait_for_form()
        self.browser.wait_for_text("#stage-title", "a gated apple")
        self.gate.touch()
        self.wait_for_image("a gated apple")

    def test_what_the_server_keeps_no_longer_leaves_the_gallery(self):
        self.make("still there")
        self.browser.run(
            "const jobs = JSON.parse(localStorage['tessera.jobs']);"
            "localStorage['tessera.jobs'] = JSON.stringify([...jobs, {id: 'job-of-yesterday', request: {prompt: 'x'}, owner: ''}]);"
        )
        self.browser.reload()
        self.wait_for_form()
        self.browser.wait_for_text("#notice-text", "1 older job left the gallery")
        self.assertEqual(self.tiles(), 1)

    def test_again_with_another_seed(self):
        self.make("an apple", num_inference_steps=3, seed=5)
        self.browser.click("#again")
        wait_until("there are two", lambda: self.tiles() == 2)
        self.wait_for_image("an apple")
        again, first = self.jobs()[:2]
        self.assertEqual(first["seed"], 5)
        self.assertNotEqual(again["seed"], 5)
        for name in ("prompt", "num_inference_steps", "size", "model"):
            self.assertEqual(again[name], first[name])

    def test_a_server_that_dies_in_the_middle_is_found_again(self):
        self.submit(prompt="a gated plum")
        self.browser.wait_for_text("#about .state", "Started")
        children = pathlib.Path(f"/proc/{self.server.process.pid}/task/{self.server.process.pid}/children")
        os.kill(int(children.read_text().split()[0]), 9)
        self.gate.touch()
        self.wait_for_image("a gated plum")
        self.assertEqual(len([job for job in self.jobs() if job["prompt"] == "a gated plum"]), 1)
        # The browser reports broken connections, and nothing else.
        self.assertEqual([text for text in self.complaints() if "ERR_" not in text], [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
