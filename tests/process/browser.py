"""Headless Chromium for tests of pages, over the pipe of its DevTools protocol: each message is JSON with a zero byte at
its end. The browser reads commands from descriptor 3 and writes answers and events to descriptor 4."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

ANSWER_S = 60  # seconds; a browser that is silent for longer hangs


def chromium():
    """The path of Chromium, or None if it is not installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A browser with one page, whose console messages and failed requests are collected in `complaints`."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="orthant-chromium-")
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()

        def connect_pipes():
            # Copies above 4 first, because the pipes may have the numbers 3 and 4 themselves.
            ends = os.dup(to_browser), os.dup(from_browser)
            held = [os.dup(end) for end in ends] + [os.dup(end) for end in ends]
            os.dup2(held[2], 3)
            os.dup2(held[3], 4)

        self.process = subprocess.Popen(
            [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            pass_fds=(), preexec_fn=connect_pipes, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session = b"", 0, None
        self.complaints, self.events = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self):
        """The next message of the browser."""
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            part = os.read(self.answers, 1 << 20) if ready else b""
            if not part:
                raise AssertionError("Chromium ended" if ready else "Chromium does not answer")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        method, values = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" or method == "Log.entryAdded":
            self.complaints.append(str(values))
        elif method == "Network.requestWillBeSent" and not values["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append("the page asked for " + values["request"]["url"])
        if method:
            self.events.append(method)
        return message

    def call(self, method, **values):
        self.number += 1
        message = {"id": self.number, "method": method, "params": values}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != self.number:
            pass
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, path, width, dark):
        """Opens a file in a window of this width, and returns when it is loaded."""
        self.complaints.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self.read()

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def move_pointer(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self):
        """The full page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)
