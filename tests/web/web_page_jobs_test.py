#!/usr/bin/env python3
"""web_page_jobs_test.py TESSERA [TEST …]: jobs on the page of a real server with fake workers, in a real browser."""

import json
import pathlib
import sys
import tempfile
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


class ProgressTest(PageCase):
    """The worker makes only the steps that are allowed."""

    @classmethod
    def setUpClass(cls):
        files = tempfile.TemporaryDirectory()
        cls.addClassCleanup(files.cleanup)
        cls.permits = pathlib.Path(files.name, "permits")
        cls.script = f"step-time=20 permits={cls.permits}"
        super().setUpClass()

    def allow(self, steps):
        with open(self.permits, "ab") as permits:
            permits.write(b"." * steps)

    def test_an_image_is_made_with_progress_and_previews(self):
        self.browser.run(OBSERVE)
        self.submit(prompt="a red apple", num_inference_steps=12)
        self.browser.wait_for_text("#about .state", "Started")
        for part in (1, 2, 3):
            self.allow(3)
            between = "return new Set(window.seen.values.filter((value) => value > 0 && value < 100)).size"
            wait_until("there is progress", lambda: self.browser.run(between) >= part)
        wait_until("there is a preview", lambda: self.browser.run("return window.seen.previews.size") > 0)
        self.allow(3)
        self.wait_for_image("a red apple")
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


class JobTest(PageCase):
    script = "step-time=20"

    def test_places_in_the_queue_are_shown_and_a_job_is_cancelled(self):
        self.submit(prompt="a gated apple", size="64x64")
        self.browser.wait_for_text("#about .state", "Started")
        self.submit(prompt="second", size="128x128")  # waits: it shares no batch with the other
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
        self.kill_the_server()
        self.gate.touch()
        self.wait_for_image("a gated plum")
        self.assertEqual(len([job for job in self.jobs() if job["prompt"] == "a gated plum"]), 1)
        # The browser reports broken connections, and nothing else.
        self.assertEqual([text for text in self.complaints() if "ERR_" not in text], [])


# Notes the path of every call of the page.
COUNT_CALLS = """
window.calls = [];
const plain = window.fetch;
window.fetch = (path, options) => {
  window.calls.push(String(path));
  return plain(path, options);
};
"""
MANY = 60


class GalleryTest(PageCase):
    """Several tabs of a browser, and many jobs."""

    script = "step-time=1"

    def another_tab(self):
        """Opens the page in a further tab and goes there; returns the first tab."""
        first = self.browser.command("GET", "/window")
        other = self.browser.command("POST", "/window/new", {"type": "tab"})["handle"]
        self.go_to(other)

        def close():
            self.go_to(other)
            self.browser.command("DELETE", "/window")
            self.go_to(first)

        self.addCleanup(close)
        self.open()
        return first, other

    def go_to(self, tab):
        self.browser.command("POST", "/window", {"handle": tab})

    def captions(self):
        return self.browser.run("return [...document.querySelectorAll('#tiles .caption')].map((each) => each.textContent)")

    def wait_for_captions(self, *captions):
        wait_until(f"the gallery has {captions}", lambda: self.captions() == list(captions))

    def test_each_tab_shows_and_keeps_the_jobs_of_the_others(self):
        self.make("first")
        first, other = self.another_tab()
        self.wait_for_captions("first")
        self.make("second")
        self.go_to(first)
        self.wait_for_captions("second", "first")
        self.make("third")
        # The state of another tab's job is asked for, too.
        wait_until("all are done", lambda: self.browser.run("return document.querySelectorAll('.tile[data-status=done]').length") == 3)
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_captions("third", "second", "first")
        # A removed job is removed from all tabs, also from the stage, and does not come back.
        self.browser.click("#tiles li:nth-child(2) .tile")
        self.browser.click("#remove")
        self.go_to(other)
        self.wait_for_captions("third", "first")
        self.assertNotEqual(self.browser.text("#stage-title"), "second")
        self.make("fourth")
        self.go_to(first)
        self.wait_for_captions("fourth", "third", "first")

    def test_a_tab_stores_its_jobs_again_that_another_tab_has_lost(self):
        """Two tabs may write at once, or another tab may show a page of an earlier version."""
        self.make("first")
        first, other = self.another_tab()
        self.browser.run("localStorage['tessera.jobs'] = '[]'")
        stored = "return (JSON.parse(localStorage['tessera.jobs'])).length"
        wait_until("it is there again", lambda: self.browser.run(stored) == 1)

    def test_what_is_stored_by_something_else_is_left_out(self):
        self.make("first")
        self.browser.run(
            "const jobs = JSON.parse(localStorage['tessera.jobs']);"
            "localStorage['tessera.jobs'] = JSON.stringify([1, null, {id: 7}, {id: 'without-a-request', owner: ''}, ...jobs]);"
        )
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("first")
        self.assertEqual(self.captions(), ["first"])

    def calls(self, begin=0):
        return self.browser.run("return window.calls.slice(arguments[0])", begin)

    def wait_for_calls(self, what, holds):
        return wait_until(what, lambda: (calls := self.calls()) and holds(calls) and calls)

    def test_many_jobs_are_watched_with_one_call_a_second_across_a_restart_of_the_server(self):
        names = [f"gated {number}" for number in range(MANY)]
        ids = [json.loads(self.call("/v1/jobs", {"prompt": name, "num_inference_steps": 1}))["id"] for name in names]
        records = [{"id": job, "request": {"prompt": name}, "owner": ""} for job, name in zip(reversed(ids), reversed(names))]
        self.browser.run("localStorage['tessera.jobs'] = arguments[0]", json.dumps(records))
        script = self.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=COUNT_CALLS)["identifier"]
        self.addCleanup(self.browser.devtools, "Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        self.open()
        self.assertEqual(self.tiles(), MANY)
        lists = lambda calls: sum(call.startswith("v1/jobs?") for call in calls)  # noqa: E731
        calls = self.wait_for_calls("four lists", lambda calls: lists(calls) >= 4)
        # The selected job is asked for once, and its events are streamed.
        self.assertEqual([call for call in calls if ids[-1] in call], [f"v1/jobs/{ids[-1]}", f"v1/jobs/{ids[-1]}/events"])
        self.assertEqual([call for call in calls if any(job in call for job in ids[:-1])], [])
        self.assertLess(len(calls), 4 + lists(calls) + 6, calls)
        self.browser.wait_for_text("#about .state", "before it")
        # Another one is selected.
        self.browser.click(f"#tiles li:nth-child({MANY}) .tile")
        self.browser.wait_for_text("#stage-title", names[0])
        self.wait_for_calls("the events of the other", lambda calls: f"v1/jobs/{ids[0]}/events" in calls)
        self.browser.wait_for_text("#about .state", "Started")
        begin = len(self.calls())
        self.kill_the_server()
        self.gate.touch()
        done = "return document.querySelectorAll('.tile[data-status=done]').length"
        wait_until("all are done", lambda: self.browser.run(done) == MANY)
        self.wait_for_image(names[0])
        # Not one job was asked for but the selected one.
        asked = [call for call in self.calls(begin) if any(call == f"v1/jobs/{job}" for job in ids)]
        self.assertEqual(asked, [])
        self.assertEqual([text for text in self.complaints() if "ERR_" not in text], [])
        # Now nothing is asked for.
        begin = len(self.calls())
        self.browser.run("location.hash = 'status'")
        self.wait_for_calls("two calls for the status", lambda _: self.calls(begin).count("v1/server") >= 2)
        self.assertEqual(lists(self.calls(begin)), 0)

    def test_a_job_that_is_not_among_the_newest_of_the_server_is_found(self):
        """Other clients without a key have sent many since."""
        self.make("mine")
        for _ in range(301):
            self.call("/v1/jobs", {"prompt": "of another", "num_inference_steps": 1})
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("mine")
        self.assertEqual(self.captions(), ["mine"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
