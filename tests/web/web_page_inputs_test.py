#!/usr/bin/env python3
"""web_page_inputs_test.py TESSERA [TEST …]: pictures to begin from and masks, on the page of a real server with fake
workers, in a real browser. But for UploadTest, the parts of the API that take pictures are in the page (picture_case.py)."""

import base64
import json
import pathlib
import struct
import sys
import unittest

from accessibility import CONTRASTS, LEAST_CONTRAST, LEAST_TARGET, STOPS, wide_elements
from browser import wait_until
from picture_case import FAKE, NAMES, Expected, Fingers, PictureInputCase, write_png

PASTE = """
const bytes = Uint8Array.from(atob(arguments[0]), (char) => char.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], 'image.png', { type: 'image/png' }));
if (arguments[1]) data.setData('text/plain', arguments[1]);
const target = document.querySelector(arguments[2]);
target.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));
"""
MOST_SECONDS = 20  # for a region that is masked on a phone


class InputTest(PictureInputCase):
    """Pictures that requests begin from."""

    def paste(self, text="", target="body"):
        self.browser.run(PASTE, base64.b64encode(self.picture.read_bytes()).decode(), text, target)

    def test_a_picture_is_uploaded_once_and_named_in_each_job(self):
        self.browser.drop(self.picture)
        self.wait_for_inputs(1)
        self.assertIn("96 × 64", self.browser.text(".inputs li"))
        self.assertEqual(self.files(), [])  # before it is needed
        self.make("a red apple", strength="0,8")
        self.assertEqual(self.files(), [self.picture.read_bytes()])
        upload = self.browser.run("return window.fake.files[0]")
        self.assertEqual((upload["purpose"], upload["name"]), ("vision", "picture"))
        self.assertEqual(self.sent()["images"], [{"file_id": upload["id"]}])
        self.assertEqual(self.sent()["strength"], 0.8)
        self.assertNotIn("mask", self.sent())
        self.assertIn("1 picture", self.browser.text(".parameters"))
        self.make("a green apple")
        self.assertEqual(self.sent()["images"], [{"file_id": upload["id"]}])
        self.assertEqual(len(self.files()), 1)

    def test_a_file_that_will_expire_soon_is_uploaded_again(self):
        self.browser.run("window.fake.lifetime = 30")
        self.add()
        self.make("a red apple")
        self.make("a green apple")
        self.assertEqual(self.files(), [self.picture.read_bytes()] * 2)
        self.assertEqual(self.sent()["images"], [{"file_id": self.ids()[1]}])

    def test_a_picture_is_pasted_and_text_that_is_pasted_with_one_is_not_replaced(self):
        self.browser.choose("#field-model", "editor")  # which takes several
        self.paste("a title", "#field-prompt")
        self.paste()
        self.wait_for_inputs(1)
        self.make("a red apple")
        self.assertEqual(self.files(), [self.picture.read_bytes()])

    def test_the_page_has_a_half_for_pictures_to_begin_from_and_one_for_parameters_to_read(self):
        self.browser.drop(self.picture, x=1200)
        self.browser.wait_for_text("#notice-text", "shore.png does not say how it was made.")
        self.wait_for_inputs(0)
        self.browser.drop(self.picture, x=200)
        self.wait_for_inputs(1)

    def test_parameters_that_are_read_leave_the_pictures_and_say_if_the_image_was_made_from_one(self):
        made = write_png(pathlib.Path(self.folder.name, "made.png"), 8, 8, lambda x, y: (0, 0, 0), "a plum\nSteps: 3, Pictures: 4f1c")
        self.add()
        self.browser.drop(made, x=1200)
        self.browser.wait_for_text("#notice-text", "The parameters of made.png are in the form. It was made from a picture, which is not in it.")
        self.assertEqual(self.browser.value("#field-prompt"), "a plum")
        self.assertEqual(self.browser.run(NAMES), ["shore.png"])

    def test_pictures_are_offered_for_models_that_take_them_alone(self):
        self.add()
        hints = {}
        offered = (("fake", True, True, True), ("filler", True, True, True), ("editor", True, False, False), ("masked", True, True, False), ("plain", False, False, False))
        for model, pictures, mask, strength in offered:
            with self.subTest(model):
                self.browser.choose("#field-model", model)
                self.assertEqual(self.browser.shown("#input-button"), pictures)
                self.assertEqual(self.browser.shown("#mask-button"), mask)
                self.assertEqual(self.browser.shown("#field-strength"), strength)
                hints[self.browser.text("#hint-images")] = model
        self.assertEqual(len(hints), len(offered))
        # What is not shown is not sent, and a drop reads parameters anywhere.
        self.make("a red apple")
        self.assertEqual({"images", "mask", "strength"} & set(self.sent()), set())
        self.assertFalse(self.browser.shown("#use"))
        self.browser.drop(self.picture)
        self.browser.wait_for_text("#notice-text", "does not say how it was made")
        # The button appears with a model that takes the image.
        self.browser.choose("#field-model", "editor")
        self.assertTrue(self.browser.shown("#use"))

    def test_what_the_server_says_of_an_upload_is_shown_at_the_field(self):
        self.add()
        self.browser.run("window.fake.refusal = {message: 'file is 60 MB; at most 50 MB are read', param: 'file'}")
        self.submit(prompt="a red apple")
        self.browser.wait_for_text("#error-images", "file is 60 MB; at most 50 MB are read")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "input-button")
        self.assertIn("error-images", self.browser.run("return document.activeElement.getAttribute('aria-describedby')"))
        self.assertEqual(self.browser.run("return window.fake.jobs.length"), 0)
        self.browser.run("window.fake.refusal = null")
        self.make("a red apple")
        self.assertEqual(self.browser.text("#error-images"), "")
        self.assertEqual(len(self.files()), 1)

    def test_what_the_server_says_of_a_picture_of_a_job_is_shown_at_the_field_and_the_next_request_uploads_it_again(self):
        self.add()
        self.make("a red apple")
        self.browser.run("""
            const fake = window.fetch;
            let refused = false;
            window.fetch = async (path, options = {}) => {
              if (path !== 'v1/jobs' || options.method !== 'POST' || refused) return fake(path, options);
              refused = true;
              const error = {message: "images[0] names a file that is not there", param: 'images[0]'};
              return new Response(JSON.stringify({error}), {status: 400});
            };""")
        self.submit(prompt="a green apple")
        self.browser.wait_for_text("#error-images", "names a file that is not there")
        self.make("a green apple")
        self.assertEqual(len(self.files()), 2)
        self.assertEqual(self.sent()["images"], [{"file_id": self.ids()[1]}])

    def test_a_file_that_is_no_picture_is_refused_at_the_field(self):
        path = pathlib.Path(self.folder.name, "notes.png")
        path.write_bytes(self.picture.read_bytes()[:40])
        self.browser.drop(path)
        self.browser.wait_for_text("#error-images", "notes.png is not a picture")
        self.wait_for_inputs(0)
        self.assertEqual(self.browser.run("return window.addresses.size"), 0)

    def test_several_pictures_are_sent_in_their_order_to_a_model_that_takes_them(self):
        self.browser.choose("#field-model", "editor")
        self.add()
        self.add(self.other, 1)
        self.add(self.picture, 2)
        self.browser.click(".inputs li:nth-child(1) .remove")
        self.wait_for_inputs(2)
        self.assertEqual(self.browser.run(NAMES), ["other.png", "shore.png"])
        self.make("a red apple")
        self.assertEqual(self.files(), [self.other.read_bytes(), self.picture.read_bytes()])
        self.assertEqual(self.sent()["images"], [{"file_id": each} for each in self.ids()])
        # A model that takes one gets the first, and the page says so.
        self.browser.choose("#field-model", "fake")
        self.assertIn("not sent: the model takes 1 picture", self.browser.text(".inputs li:nth-child(2)"))
        self.make("a green apple")
        self.assertEqual(self.sent()["images"], [{"file_id": self.ids()[0]}])

    def test_a_model_that_looks_at_pictures_begins_from_the_first_where_a_mask_is_painted_on_it(self):
        self.browser.choose("#field-model", "masked")
        self.add()
        self.add(self.other, 1)
        self.open_mask()
        self.browser.press("Space")
        self.close_mask()
        self.assertTrue(self.browser.shown("#field-strength"))
        self.assertEqual(self.browser.run("return document.getElementById('field-strength').placeholder"), "0.8")
        self.make("a red apple", strength=0.7)
        self.assertEqual(self.files()[:2], [self.picture.read_bytes(), self.other.read_bytes()])
        self.assertEqual(self.sent()["images"], [{"file_id": each} for each in self.ids()[:2]])
        self.assertEqual((self.sent()["mask"], self.sent()["strength"]), ({"file_id": self.ids()[2]}, 0.7))
        # Without its mask the picture is one to look at.
        self.open_mask()
        self.browser.click("#mask-clear")
        self.close_mask()
        self.assertFalse(self.browser.shown("#field-strength"))
        self.make("a green apple")
        self.assertEqual({"mask", "strength"} & set(self.sent()), set())

    def test_no_more_pictures_are_added_than_the_model_takes(self):
        self.browser.choose("#field-model", "editor")
        paths = "\n".join([str(self.other)] * 15)
        self.browser.type("#input-file", paths, clear=False)
        self.wait_for_inputs(15)
        self.browser.type("#input-file", f"{self.picture}\n{self.other}\n{self.other}", clear=False)
        self.browser.wait_for_text("#error-images", "The model takes 16 pictures; 2 pictures left out.")
        self.assertEqual(self.browser.run(NAMES)[15:], ["shore.png"])
        self.assertTrue(self.browser.run("return document.getElementById('input-button').disabled"))
        self.assertEqual(self.browser.run("return window.addresses.size"), 16)

    def test_an_image_of_the_gallery_is_used_and_compared_with_what_it_becomes(self):
        self.make("a red apple", size="64x48")
        first = self.jobs()[0]["images"][0]
        self.assertFalse(self.browser.shown("#compare"))
        self.browser.click("#use")
        self.wait_for_inputs(1)
        self.assertIn("64 × 48", self.browser.text(".inputs li"))
        self.make("a green apple", size="64x48")
        self.assertEqual(self.files(), [self.call(f"/v1/images/{first['id']}")])
        self.browser.click("#compare")
        self.assertEqual(self.browser.run("return document.getElementById('compare').ariaPressed"), "true")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "compare-range")
        shown = """
            const before = document.querySelector('#pictures .before');
            const [box, figure] = [before, before.parentElement].map((each) => each.getBoundingClientRect());
            return {cut: getComputedStyle(before).clipPath, same: box.width === figure.width && box.height === figure.height,
                    natural: before.naturalWidth, fit: getComputedStyle(before).objectFit,
                    value: document.getElementById('compare-range').getAttribute('aria-valuetext')};
        """
        wait_until("it is loaded", lambda: self.browser.run("return document.querySelector('#pictures .before').naturalWidth > 0"))
        self.assertEqual(self.browser.run(shown), {"cut": "inset(0px 50% 0px 0px)", "same": True, "natural": 64, "fit": "fill", "value": "50 % before"})
        self.browser.press("\ue014")
        self.assertEqual(self.browser.run(shown)["value"], "51 % before")
        # The line follows the mouse on the picture.
        left, top, width = self.browser.run("const b = document.querySelector('.compared').getBoundingClientRect(); return [b.left, b.top, b.width]")
        for kind, part in (("mousePressed", 0.5), ("mouseMoved", 0.25), ("mouseReleased", 0.25)):
            self.browser.devtools("Input.dispatchMouseEvent", type=kind, x=left + part * width, y=top + 30, button="left", buttons=0 if kind == "mouseReleased" else 1, clickCount=1)
        self.assertEqual(self.browser.run(shown)["cut"], "inset(0px 75% 0px 0px)")
        self.browser.click("#compare")
        self.assertFalse(self.browser.shown("#pictures .before"))
        # Another job that began from nothing has nothing to compare.
        self.browser.click("#tiles li:last-child .tile")
        self.wait_for_image("a red apple")
        self.assertFalse(self.browser.shown("#compare"))

    def test_pictures_are_released_when_nothing_needs_them(self):
        held = lambda: self.browser.run("return window.addresses.size")  # noqa: E731
        self.add()
        self.add(self.other)  # in place of the first
        self.assertEqual(held(), 1)
        self.make("a red apple")
        with_image = held()
        self.browser.click(".inputs .remove")
        self.wait_for_inputs(0)
        self.assertEqual(held(), with_image)  # it is kept for the comparison
        self.browser.click("#remove")
        wait_until("the gallery is empty", lambda: self.tiles() == 0)
        self.assertEqual(held(), 0)

    def test_a_request_is_edited_with_its_picture_and_mask_also_after_a_reload(self):
        self.add()
        self.open_mask()
        self.browser.press("Space")
        self.close_mask()
        self.make("a red apple", strength=0.7)
        first = self.sent()
        self.assertEqual(first["mask"], {"file_id": self.ids()[1]})
        self.browser.click("#reset")
        self.wait_for_inputs(0)
        self.browser.click("#edit")
        self.wait_for_inputs(1)
        self.assertIn("% painted", self.browser.text(".inputs li"))
        self.make("a green apple")
        self.assertEqual([self.sent()[name] for name in ("images", "mask", "strength")], [first["images"], first["mask"], 0.7])
        self.assertEqual(len(self.files()), 2)
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("a green apple")
        self.assertFalse(self.browser.shown("#compare"))
        self.browser.click("#edit")
        self.wait_for_inputs(1)
        self.assertIn("no longer in this tab, mask sent earlier", self.browser.text(".inputs li"))
        self.make("a blue apple")
        self.assertEqual([self.sent()[name] for name in ("images", "mask")], [first["images"], first["mask"]])
        self.assertEqual(self.files(), [])
        self.browser.click("#again")
        wait_until("there are four", lambda: self.tiles() == 4)
        self.assertEqual([self.sent()[name] for name in ("images", "mask")], [first["images"], first["mask"]])

    def test_files_of_an_earlier_request_that_have_expired_are_uploaded_again(self):
        self.browser.run("window.fake.lifetime = 30")
        self.add()
        self.make("a red apple")
        self.browser.click(".inputs .remove")
        self.browser.click("#again")
        wait_until("there are two", lambda: self.tiles() == 2)
        self.assertEqual(self.files(), [self.picture.read_bytes()] * 2)
        self.assertEqual(self.sent()["images"], [{"file_id": self.ids()[1]}])


class UploadTest(PictureInputCase):
    """Pictures that the server itself takes."""

    script = "step-time=5 pictures=start"
    changes_answers = False

    def test_a_job_begins_from_a_picture_and_a_mask_and_again_after_a_reload(self):
        self.add()
        self.open_mask()
        self.browser.press("Space")
        self.close_mask()
        self.make("a red apple", strength=0.5, num_inference_steps=4)
        files = json.loads(self.call("/v1/files"))["data"]
        self.assertEqual([(each["size"], each["purpose"]) for each in files], [("96x64", "vision")] * 2)
        self.assertEqual(self.jobs()[0]["steps_done"], 2)
        self.assertTrue(self.browser.shown("#compare"))
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("a red apple")
        self.browser.click("#again")
        wait_until("there are two", lambda: len(self.jobs()) == 2 and self.jobs()[0]["status"] == "done")
        self.assertEqual(self.jobs()[0]["steps_done"], 2)
        self.assertEqual(len(json.loads(self.call("/v1/files"))["data"]), 2)

    def test_what_the_server_says_of_a_picture_is_shown_at_the_field(self):
        wide = write_png(pathlib.Path(self.folder.name, "wide.png"), 20000, 1, lambda x, y: (0, 0, 0))
        self.add(wide)
        self.submit(prompt="a red apple")
        self.browser.wait_for_text("#error-images", "16384")


class MaskCase(PictureInputCase):
    """Masks that are painted, and what is uploaded of them."""

    def setUp(self):
        super().setUp()
        self.expected = Expected(*self.SIZE)

    def draw(self, points, how, erase=False):
        """Draws a line through points of the picture, and expects it in the mask."""
        places = self.on_screen(points)
        for place in places:
            self.assertEqual(self.browser.run("return document.elementFromPoint(...arguments[0]).id", place), "mask-pane")
        self.expected.paint(*self.on_picture(places), erase=erase)
        how(places)

    def uploaded_mask(self):
        """Closes the dialog and sends a job; the file that it names as the mask."""
        self.close_mask()
        self.make(f"apple {self.tiles()}")
        names = self.ids()
        self.assertEqual(self.sent()["images"], [{"file_id": names[0]}])
        return self.files()[names.index(self.sent()["mask"]["file_id"])]

    def assert_mask(self, least=1):
        wrong, count = self.expected.differences(self.uploaded_mask())
        self.assertEqual(wrong[:10], [])
        self.assertGreaterEqual(count, least)

    def strokes_can_be(self):
        """Whether they can be undone, and done again."""
        return self.browser.run("return ['undo', 'redo'].map((name) => !document.getElementById('mask-' + name).disabled)")


class MaskTest(MaskCase):
    """Masks that are painted with a mouse or the keyboard."""

    def mouse(self, places, button="left"):
        for kind, (x, y) in [("mousePressed", places[0]), *(("mouseMoved", each) for each in places[1:]), ("mouseReleased", places[-1])]:
            self.browser.devtools("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=0 if kind == "mouseReleased" else 1 if button == "left" else 4, clickCount=1)

    def test_strokes_of_brush_and_eraser_are_undone_and_done_again(self):
        self.add()
        self.open_mask()
        self.assertEqual(self.strokes_can_be(), [False, False])
        self.draw([(20, 20), (70, 40), (40, 50)], self.mouse)
        self.browser.click("#mask-eraser")
        self.draw([(40, 10), (40, 60)], self.mouse, erase=True)
        self.browser.click("#mask-brush")
        unwanted = Expected(*self.SIZE)
        unwanted, self.expected = self.expected, unwanted
        self.draw([(80, 10), (80, 60)], self.mouse)
        self.expected = unwanted
        self.browser.click("#mask-undo")
        self.assertEqual(self.strokes_can_be(), [True, True])
        self.browser.press("Control", "z")
        self.browser.press("Control", "Shift", "z")
        self.browser.click("#mask-clear")
        self.browser.click("#mask-undo")
        self.assert_mask()
        self.assertEqual(len(self.files()), 2)
        # The mask that is changed is uploaded again, the picture is not.
        self.open_mask()
        self.draw([(10, 55), (90, 55)], self.mouse)
        self.assert_mask()
        self.assertEqual(len(self.files()), 3)

    def test_a_brush_of_another_size_paints_finer_where_the_picture_is_enlarged(self):
        self.add()
        self.open_mask()
        self.browser.run("const e = document.getElementById('mask-size'); e.value = 90; e.dispatchEvent(new Event('input'));")
        self.draw([(20, 20)], self.mouse)
        wide = self.on_picture([(0, 0)])[1]
        for _ in range(3):
            self.browser.click("#mask-in")
        fine = self.on_picture([(0, 0)])[1]
        self.assertAlmostEqual(wide / fine, 1.4**3, places=3)
        self.draw([(48, 32)], self.mouse)
        # The wheel keeps what is under the mouse in place, and the middle button moves the picture.
        place = self.on_screen([(40, 40)])[0]
        spot = self.on_picture([place])[0][0]
        self.browser.devtools("Input.dispatchMouseEvent", type="mouseWheel", x=place[0], y=place[1], deltaX=0, deltaY=-200)
        wait_until("it is zoomed", lambda: self.on_picture([(0, 0)])[1] < fine * 0.9)
        for there, here in zip(self.on_picture([place])[0][0], spot):
            self.assertAlmostEqual(there, here, places=2)
        self.mouse([place, (place[0] - 80, place[1] - 60)], button="middle")
        moved = self.on_picture([(place[0] - 80, place[1] - 60)])[0][0]
        for there, here in zip(moved, spot):
            self.assertAlmostEqual(there, here, places=2)
        self.draw([moved], self.mouse)
        self.browser.click("#mask-fit")
        self.assert_mask()

    def test_a_mask_that_is_erased_again_is_not_sent(self):
        self.add()
        self.open_mask()
        self.mouse(self.on_screen([(20, 20), (50, 20)]))
        self.browser.click("#mask-clear")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "mask-pane")  # not at a button without use
        self.close_mask()
        self.assertEqual(self.browser.text("#mask-button"), "Paint mask")
        self.make("a red apple")
        self.assertNotIn("mask", self.sent())
        self.assertEqual(len(self.files()), 1)

    def test_a_mask_is_painted_with_the_keyboard(self):
        left, up, right, down = "\ue012", "\ue013", "\ue014", "\ue015"
        self.add()
        self.browser.run("document.getElementById('mask-button').focus()")
        self.browser.press("Enter")
        wait_until("the dialog is open", lambda: self.browser.shown("#mask-dialog"))
        self.assertEqual(self.browser.run("return document.activeElement.id"), "mask-pane")
        _, _, scale, radius = self.place()
        step = 10 / scale
        middle = self.SIZE[0] / 2, self.SIZE[1] / 2
        self.browser.press(*[left] * 6, *[up] * 4, "Space")
        at = middle[0] - 6 * step, middle[1] - 4 * step
        self.expected.paint([at], radius / scale)
        self.assertEqual(self.browser.text("#mask-status"), "Painted.")
        # A line, with the space bar held; one pixel a step with Shift.
        self.browser.press("]")
        wider = int(self.browser.value("#mask-size")) / 2 / scale
        self.assertGreater(wider, 1.2 * radius / scale)
        held = [{"type": "keyDown", "value": " "}, *({"type": kind, "value": key} for key in [right] * 8 + [down] * 6 for kind in ("keyDown", "keyUp")), {"type": "keyUp", "value": " "}]
        self.browser.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": held}]})
        corner = at[0] + 8 * step, at[1]
        end = corner[0], corner[1] + 6 * step
        self.expected.paint([at, corner, end], wider)
        percent = [round(100 * part / whole) for part, whole in zip(end, self.SIZE)]
        self.assertEqual(self.browser.text("#mask-status"), f"{percent[0]} % from the left, {percent[1]} % from the top.")
        self.browser.press("e")
        self.browser.press("Shift", *[left] * 3)
        self.browser.press("Space")
        self.expected.paint([(end[0] - 3, end[1])], wider, erase=True)
        self.assertEqual(self.browser.text("#mask-status"), "Erased.")
        self.browser.press("Control", "z")
        self.assertEqual(self.strokes_can_be(), [True, True])
        self.browser.press("Control", "y")
        self.assertEqual(self.strokes_can_be(), [True, False])
        # Escape keeps what is painted, and the focus goes back.
        self.browser.press("Escape")
        self.wait_for_form_again()
        self.assertEqual(self.browser.run("return document.activeElement.id"), "mask-button")
        self.open_mask()
        self.assert_mask()

    def test_the_keyboard_reaches_every_tool_in_order(self):
        self.add()
        self.open_mask()
        self.browser.press("Space")
        order = []
        for _ in range(12):
            self.browser.press("Tab")
            order.append(self.browser.run("return document.activeElement.id"))
        tools = ["brush", "eraser", "move", "size", "undo", "clear", "out", "fit", "in", "done"]
        self.assertEqual([each for each in order if each][:10], [f"mask-{name}" for name in tools])

    def test_a_picture_that_is_stored_turned_has_a_mask_of_what_is_seen(self):
        image = self.finished(prompt="an apple", size="96x64", output_format="jpeg")["images"][0]
        data = self.call(f"/v1/images/{image['id']}")
        # A directory with one entry: orientation (0x112), of type SHORT, 6.
        exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x112, 3, 1, 6, 0, 0)
        turned = pathlib.Path(self.folder.name, "turned.jpeg")
        turned.write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:])
        self.expected = Expected(64, 96)
        self.add(turned)
        self.open_mask()
        self.draw([(10, 80), (50, 90)], self.mouse)
        self.assert_mask()

    def test_nothing_is_pasted_while_a_mask_is_painted(self):
        self.add()
        self.open_mask()
        self.browser.run(PASTE, base64.b64encode(self.other.read_bytes()).decode(), "", "#mask-pane")
        self.close_mask()
        self.assertEqual(self.browser.run(NAMES), ["shore.png"])

    def test_a_wide_picture_has_a_mask_of_its_own_size_to_the_edges(self):
        size = 301, 7
        self.expected = Expected(*size)
        self.add(write_png(pathlib.Path(self.folder.name, "wide.png"), *size, lambda x, y: (x % 256, 0, 0)))
        self.open_mask()
        self.draw([(0.5, 3.5), (300, 3.5)], self.mouse)
        self.assert_mask(least=300 * 7)

    def test_it_fits_a_phone_and_can_be_read_in_both_schemes(self):
        self.browser.be_a_phone()
        self.addCleanup(self.browser.prefer, "light")
        self.browser.choose("#field-model", "editor")
        self.add()
        self.add(self.other, 1)
        self.browser.choose("#field-model", "fake")
        self.open_mask()
        self.browser.press("Space")
        small = (
            "return [...document.querySelectorAll('button, input')].filter((e) => e.checkVisibility() && !e.matches('.link'))"
            ".map((e) => [e.id || e.outerHTML.slice(0, 60), e.getBoundingClientRect()])"
            ".filter(([, box]) => Math.min(box.width, box.height) < arguments[0]).map(([name]) => name)"
        )
        for width in (390, 320):
            self.browser.be_a_phone(width)
            for view in ("dialog", "form"):
                if view == "form":
                    self.close_mask()
                with self.subTest(view, width=width):
                    # The picture follows the size of the dialog once the page has been laid out again.
                    wait_until("nothing is wider than the window", lambda: wide_elements(self.browser) == [])
                    self.assertEqual(self.browser.run(small, LEAST_TARGET), [])
                    if view == "dialog":
                        bottom = self.browser.run("return document.querySelector('.tools').getBoundingClientRect().bottom")
                        self.assertLessEqual(bottom, 844)
                        height = self.browser.run("return document.getElementById('mask-pane').clientHeight")
                        self.assertGreater(height, 400)
                    nodes = self.browser.devtools("Accessibility.getFullAXTree")["nodes"]
                    stops = [node for node in nodes if not node["ignored"] and node["role"]["value"] in STOPS | {"slider", "application"}]
                    self.assertGreater(len(stops), 10)
                    self.assertEqual([node["role"]["value"] for node in stops if not node.get("name", {}).get("value", "").strip()], [])
                    for scheme in ("light", "dark"):
                        self.browser.prefer(scheme)
                        self.browser.run_async("await Promise.all(document.getAnimations().filter((a) => a instanceof CSSTransition).map((a) => a.finished.catch(() => 0)));")
                        contrasts = self.browser.run(CONTRASTS)
                        self.assertGreater(len(contrasts), 5)
                        self.assertEqual([each for each in contrasts if each[0] < LEAST_CONTRAST], [])
            self.open_mask()


class TouchTest(MaskCase):
    """Masks that are painted with fingers on a phone."""

    def setUp(self):
        # Each test has its own tab: after the page is opened again in the same one, emulated fingers do not reach it.
        first = self.browser.command("GET", "/window")
        tab = self.browser.command("POST", "/window/new", {"type": "tab"})["handle"]
        self.browser.command("POST", "/window", {"handle": tab})
        self.addCleanup(self.browser.command, "POST", "/window", {"handle": first})
        self.addCleanup(self.browser.command, "DELETE", "/window")
        self.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=FAKE)
        super().setUp()
        self.browser.be_a_phone()
        self.browser.devtools("Emulation.setTouchEmulationEnabled", enabled=True)

    def test_a_finger_masks_a_face_on_a_phone_in_less_than_twenty_seconds(self):
        size = 150, 200
        face = pathlib.Path(self.folder.name, "face.png")
        middle, radius = (90, 70), 25
        write_png(face, *size, lambda x, y: (224, 172, 140) if (x - middle[0]) ** 2 + (y - middle[1]) ** 2 < radius**2 else (90, 140, 200))
        self.expected = Expected(*size)
        self.add(face)
        fingers = Fingers(self.browser)
        self.open_mask()
        fingers.seconds += fingers.REACH
        before = self.place()
        # The first finger of the pinch is on the picture and paints nothing.
        fingers.pinch(self.on_screen([middle])[0], 60, 150)
        after = self.place()
        self.assertAlmostEqual(after[2] / before[2], 150 / 60, places=3)
        zigzag = [(middle[0] + side * 18, middle[1] + down) for down, side in zip(range(-20, 21, 5), [-1, 1] * 5)]
        self.draw(zigzag, fingers.draw)
        self.draw([(middle[0] + 2, middle[1] - 24), (middle[0] + 18, middle[1] - 24)], fingers.draw)
        # It went too far there.
        fingers.tap("#mask-eraser")
        self.draw([(middle[0] + 18, middle[1] - 30), (middle[0] + 18, middle[1] - 15)], fingers.draw, erase=True)
        seconds = fingers.seconds + fingers.REACH  # to finish
        self.assertLess(seconds, MOST_SECONDS)
        self.assertGreater(seconds, MOST_SECONDS / 10)  # or the estimate is wrong
        self.assert_mask(least=radius * radius)

    def test_a_stroke_goes_on_when_a_second_finger_comes_late(self):
        self.add()
        self.open_mask()
        fingers = Fingers(self.browser)
        a, b, c = self.on_screen([(10, 20), (60, 20), (60, 50)])
        self.expected.paint(*self.on_picture([a, b]))
        fingers.touch("touchStart", a)
        fingers.touch("touchMove", b)
        fingers.touch("touchStart", b, c)
        fingers.touch("touchMove", b, (c[0], c[1] + 60))
        fingers.touch("touchEnd")
        self.assertEqual(self.strokes_can_be(), [True, False])
        self.assert_mask()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
