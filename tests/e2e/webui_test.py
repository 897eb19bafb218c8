"""The chat page in headless Chromium, against the embedded pair. Skipped where there is no Chromium or no selenium."""

import os
import shutil
import time
import unittest

from cluster import DRAFTED_PAIR, Server

SKIPPED = 77
DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium")
# Where a person may look at the page as each test left it.
PICTURES = os.environ.get("OUTRIDER_WEBUI_PICTURES")

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait
except ImportError:
    webdriver = None


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--window-size=1100,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


class ChatPage(unittest.TestCase):
    options = DRAFTED_PAIR
    model = "outrider-embedded"

    @classmethod
    def setUpClass(cls):
        cls.server = Server(0, *cls.options)
        cls.addClassCleanup(cls.server.kill)
        cls.driver = browser()
        cls.addClassCleanup(cls.driver.quit)

    def setUp(self):
        self.driver.get(self.server.url + "/")
        self.wait(lambda: self.find("#model").text == self.model)

    def tearDown(self):
        if PICTURES:
            self.driver.save_screenshot(f"{PICTURES}/{self.id().rsplit('.', 2)[1]}.{self._testMethodName}.png")
        self.assertEqual(self.console(), [])

    def console(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition, timeout_s=30):
        return WebDriverWait(self.driver, timeout_s, poll_frequency=0.02).until(lambda _: condition())

    def set(self, **values):
        """Settings by the ids of their fields."""
        self.driver.execute_script("document.getElementById('settings').open = true")
        for name, value in values.items():
            field = self.find("#" + name)
            if field.tag_name == "select":
                Select(field).select_by_value(value)
            else:
                field.clear()
                field.send_keys(value)

    def send(self, text):
        self.find("#prompt").send_keys(text, Keys.ENTER)

    def idle(self):
        return self.find("#send").is_displayed() and not self.all("[aria-busy]")

    def answer(self, text):
        """Sends it; the text of the whole answer."""
        self.send(text)
        self.wait(self.idle)
        return self.all(".answer .text")[-1].get_property("textContent")

    def origins(self):
        return {name for name in ("accepted", "corrected", "bonus", "plain") if self.all(f".t.{name}")}

    def emulate(self, width=1100, scheme="light"):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": 740, "deviceScaleFactor": 2, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.addCleanup(self.driver.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})
        self.addCleanup(self.driver.execute_cdp_cmd, "Emulation.setEmulatedMedia", {"features": []})

    def style(self, selector, name):
        return self.find(selector).value_of_css_property(name)


class Chatting(ChatPage):
    def test_the_origins_of_an_answer(self):
        self.set(max_tokens="300", temperature="0.7", seed="5")
        whole = self.answer("Once upon a time")
        self.assertGreaterEqual(self.origins(), {"accepted", "corrected", "bonus"})
        styles = {(self.style(f".t.{name}", "text-decoration-color"), self.style(f".t.{name}", "text-decoration-style"))
                  for name in ("accepted", "corrected", "bonus")}
        self.assertEqual(len({color for color, _ in styles}), 3)
        self.assertEqual(len({line for _, line in styles}), 3)
        _, reply = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 300, "temperature": 0.7, "seed": 5})
        self.assertEqual(whole, reply["choices"][0]["message"]["content"])
        stats = self.find(".stats").text
        self.assertRegex(stats, rf"(?s)\b{reply['usage']['completion_tokens']} tokens.*tokens/s.*tokens per round.*% accepted")
        bars = sum(path.get_attribute("d").count("M") for path in self.all(".plot path"))
        self.assertGreater(bars, 100)

    def test_the_conversation_goes_on_and_begins_anew(self):
        self.set(max_tokens="12", temperature="0")
        first = self.answer("The king said")
        second = self.answer("And then?")
        _, reply = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "The king said"}, {"role": "assistant", "content": first},
                         {"role": "user", "content": "And then?"}], "max_tokens": 12, "temperature": 0})
        self.assertEqual(second, reply["choices"][0]["message"]["content"])
        self.find("#new").click()
        self.assertEqual(self.all(".turn"), [])
        self.assertTrue(self.find("#empty").is_displayed())
        self.assertEqual(self.answer("The king said"), first)

    def test_settings_take_effect(self):
        self.set(max_tokens="5", temperature="0", speculation="off")
        self.answer("The soldiers")
        self.assertIn("5 tokens", self.find(".stats").text)
        self.assertEqual(self.origins(), {"plain"})
        self.set(max_tokens="20", mode="completion", speculation="on")
        text = self.answer("It was a dark night and")
        _, reply = self.server.post("/v1/completions", {"prompt": "It was a dark night and", "max_tokens": 20,
                                                        "temperature": 0})
        self.assertEqual(text, reply["choices"][0]["text"])
        self.assertIn("accepted", self.origins())
        self.find("#origins").click()
        self.assertIn("none", self.style(".t.accepted", "text-decoration"))

    def test_a_setting_that_cannot_be_is_not_sent(self):
        self.set(temperature="7")
        self.send("x")
        time.sleep(0.2)
        self.assertEqual(self.all(".turn"), [])
        self.assertEqual(self.find("#prompt").get_property("value"), "x")

    def test_text_is_never_markup(self):
        self.set(max_tokens="3")
        self.answer("<img src=x onerror=alert(1)><b>bold</b>")
        self.assertEqual(self.all("#log img, #log b:not(.stats b)"), [])
        self.assertIn("<b>bold</b>", self.find(".turn.user").text)

    def test_an_error_is_one_sentence(self):
        self.driver.execute_script("document.getElementById('prompt').value = arguments[0]", "word " * 1200)
        self.send(" ")
        self.wait(lambda: self.all(".problem"))
        self.assertRegex(self.find(".problem").text, "maximum context length is 1024 tokens.*A new chat begins")
        self.assertRegex("".join(self.console()), "^[^ ]*/v1/chat/completions - .* 400 ")

    def test_a_phone(self):
        self.emulate(width=360)
        self.set(max_tokens="60", temperature="0.7")
        self.answer("x" * 120)
        self.assertEqual(self.driver.execute_script("return innerWidth"), 360)
        for size in ("scrollWidth", "clientWidth"):
            self.assertLessEqual(self.driver.execute_script(f"return document.documentElement.{size}"), 360)
        self.assertGreaterEqual(self.find("#prompt").size["width"], 200)

    def test_dark_mode(self):
        colors = {}
        self.set(max_tokens="60", temperature="0.7", seed="1")
        self.answer("Once upon a time")
        for scheme in ("light", "dark"):
            self.emulate(scheme=scheme)
            colors[scheme] = [self.style("html", "background-color"), self.style("html", "color"),
                              self.style(".t.accepted", "text-decoration-color")]
        for light, dark in zip(colors["light"], colors["dark"]):
            self.assertNotEqual(light, dark)

    def test_by_keyboard_alone(self):
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "prompt")
        self.find("#prompt").send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two")
        self.assertEqual(self.find("#prompt").get_property("value"), "one\ntwo")
        self.assertEqual(self.all(".turn"), [])
        reached = []
        for _ in range(6):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            element = self.driver.switch_to.active_element
            reached.append(element.get_attribute("id") or element.tag_name)
            if element.tag_name != "body":
                self.assertNotEqual(element.value_of_css_property("outline-style"), "none")
        for name in ("send", "origins", "summary"):
            self.assertIn(name, reached)


class Streaming(ChatPage):
    """Rounds of 40 ms, thousands of tokens."""
    options = ["--model", "sim:step_ms=40", "--speculative-config.model", "sim:step_ms=4,alpha=0.8"]
    model = "outrider-simulated"

    def test_text_comes_in_pieces_and_stops_when_told(self):
        for stop in (lambda: self.find("#stop").click(), lambda: self.find("body").send_keys(Keys.ESCAPE)):
            ended = self.server.metric("vllm:request_success_total")
            self.send("Tell me a long story")
            text = self.wait(lambda: self.all(".answer")[-1].text)
            self.wait(lambda: len(self.all(".answer")[-1].text) > len(text))
            self.assertEqual(self.all(".answer")[-1].get_attribute("aria-busy"), "true")
            stop()
            self.wait(self.idle)
            self.assertEqual(self.find("#status").get_property("textContent"), "Stopped.")
            self.wait(lambda: self.server.metric("vllm:request_success_total") == ended + 1)
            self.assertEqual(self.all(".problem"), [])

    def test_an_example_is_sent(self):
        self.find("#examples button").click()
        self.wait(lambda: self.all(".answer .t"))
        self.find("#stop").click()
        self.wait(self.idle)

    def test_the_end_of_the_server_is_one_sentence(self):
        with Server(0, *self.options) as server:
            self.driver.get(server.url)
            self.send("Tell me a long story")
            self.wait(lambda: self.all(".answer .t"))
            server.kill()
            self.wait(lambda: self.all(".problem"))
            self.wait(self.idle)
        self.assertTrue(self.find(".answer .text").text)
        self.assertIn("ERR_", "".join(self.console()))  # Chromium notes the lost connection


class BelowARootPath(ChatPage):
    options = [*DRAFTED_PAIR, "--root-path", "/llm"]

    def test_it_works_there(self):
        self.driver.get(self.server.url + "/llm")
        self.wait(lambda: self.find("#model").text == self.model)
        self.assertEqual(self.driver.current_url, self.server.url + "/llm/")
        self.set(max_tokens="5")
        self.assertTrue(self.answer("A"))
        requested = self.driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertIn(self.server.url + "/llm/v1/chat/completions", requested)


class WithKey(ChatPage):
    options = [*DRAFTED_PAIR, "--api-key", "secret"]

    def setUp(self):
        self.driver.get(self.server.url + "/")

    def test_the_key_is_asked_for_and_kept_in_memory(self):
        self.wait(lambda: self.find("#ask").is_displayed())
        self.find("#key").send_keys("wrong", Keys.ENTER)
        self.wait(lambda: self.find("#ask").is_displayed() and not self.find("#key").get_property("value"))
        self.find("#key").send_keys("secret", Keys.ENTER)
        self.wait(lambda: self.find("#model").text == "outrider-embedded")
        self.set(max_tokens="5")
        self.assertTrue(self.answer("A"))
        self.assertEqual(self.driver.execute_script("return localStorage.length + sessionStorage.length + document.cookie.length"), 0)
        self.assertNotRegex("".join(self.console()), "(?i)refused|violat|error:")  # Chromium notes each 401

    def test_a_key_that_is_not_given_is_asked_for_with_the_next_message(self):
        self.wait(lambda: self.find("#ask").is_displayed())
        self.find("#key").send_keys(Keys.ESCAPE)
        self.wait(lambda: self.find("#model").text == "an API key is needed")
        self.set(max_tokens="5")
        self.send("A")
        self.wait(lambda: self.find("#ask").is_displayed())
        self.find("#key").send_keys("secret", Keys.ENTER)
        self.wait(lambda: self.idle() and self.find("#model").text == self.model)
        self.assertTrue(self.find(".answer .text").text)
        self.console()  # Chromium notes each 401


if __name__ == "__main__":
    if webdriver is None or DRIVER is None or BROWSER is None:
        print("SKIPPED: chromium, chromedriver and the selenium package are needed")
        raise SystemExit(SKIPPED)
    unittest.main(verbosity=2)
