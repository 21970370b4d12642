#!/usr/bin/env python3
"""take_screenshots.py URL FOLDER: takes screenshots of the page of a running server, for the documents and for review.

Makes pictures with the server, so that there is something to see.
"""

import pathlib
import sys

from browser import Browser, wait_until

PROMPTS = ["red apple", "purple heart", "hamburger", "robot face", "sunflower", "rocket", "grinning face"]


def main(url, folder):
    browser = Browser(width=1440, height=1000)
    try:
        browser.open(url)
        wait_until(
            "the form is there",
            lambda: browser.run("return !document.querySelector('#composer').hasAttribute('aria-busy')"),
        )

        def shoot(name, **how):
            browser.run("document.activeElement.blur(); scrollTo(0, 0);")
            browser.screenshot(folder / f"web-page-{name}.png", **how)

        shoot("empty")
        for prompt in PROMPTS:
            browser.type("#field-prompt", prompt)
            browser.click("#submit")
            wait_until(
                f"a picture of {prompt}",
                lambda: browser.run(
                    "return document.getElementById('stage-title').textContent === arguments[0]"
                    " && document.querySelector('#pictures [data-kind=finished] img')?.naturalWidth > 0",
                    prompt,
                ),
            )
        shoot("light")
        browser.prefer("dark")
        shoot("dark")
        browser.type("#field-n", "99")
        browser.click("#submit")
        browser.wait_for_text("#error-n", "valid values")
        browser.run("document.getElementById('more').open = true")
        shoot("options-dark", whole=True)
        browser.run("location.hash = 'status'")
        wait_until("the status is there", lambda: browser.shown("#groups tr"))
        shoot("status-dark")
        browser.prefer("light")
        shoot("status")
        browser.be_a_phone()
        shoot("phone-status", whole=True)
        browser.run("location.hash = 'create'")
        browser.run("document.getElementById('more').open = false")
        wait_until("the page is there", lambda: browser.shown("#composer"))
        shoot("phone", whole=True)
        browser.be_a_desktop()
        browser.type("#field-n", "1")
        browser.type("#field-prompt", "red apple on a plate")
        browser.type("#field-num_inference_steps", "200")
        browser.click("#submit")
        wait_until("steps are done", lambda: browser.run("return document.querySelectorAll('#about .progress .set').length > 3"))
        shoot("running")
        browser.click("#cancel")
        browser.wait_for_text("#about .state", "Cancelled")
        print("\n".join(browser.messages()))
    finally:
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
