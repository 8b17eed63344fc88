"""Tests of `orthant compare`: runs on two layouts in one page, and folders that cannot be compared. With Chromium, the
pages of runs are opened on wide and narrow screens, in light and dark mode."""
import json
import shutil
import unittest

from browser import Browser, chromium
from orthant_process import ProcessTest, main

SHORT = ("training.steps=4", "validation.freq=2", "checkpoint.interval=0")


class Compare(ProcessTest):
    def train_to(self, folder, *keys):
        self.train_well(*SHORT, f"job.dump_folder={folder}", *keys)

    def records_of(self, folder):
        return self.records(self.folder / folder)

    def write_records(self, folder, records):
        (self.folder / folder).mkdir(exist_ok=True)
        (self.folder / folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def assert_in_page(self, text, page="compare.html"):
        self.assertTrue(text in (self.folder / page).read_text(), f"{page} lacks: {text}")

    def test_page_of_two_layouts(self):
        """ZeRO keeps the order of sums, so the losses have equal bits. One changed loss is the negative control."""
        self.train_to("data")
        self.train_to("zero", "parallelism.zero_stage=1")
        result = self.orthant("compare", "data", "zero")
        self.assertEqual((result.code, result.out), (0, "compare.html\n"), result)
        self.assert_in_page("The losses of all 2 runs are equal in every bit at 4 common steps.")
        self.assert_in_page("<code>parallelism.zero_stage</code>")
        self.assertNotIn("<code>training.seed</code>", (self.folder / "compare.html").read_text())
        records = self.records_of("zero")
        for record in records:
            if record["step"] == 3 and "loss" in record:
                record["loss"] += 1e-3
        self.write_records("zero", records)
        self.assertEqual(self.orthant("compare", "data", "zero", "--output", "other.html").code, 0)
        self.assert_in_page("The largest difference of the losses from those of data at equal steps is 0.001 ",
                            "other.html")
        self.assert_in_page("zero at step 3.", "other.html")

    def test_folders_that_cannot_be_compared(self):
        self.train_to("data")
        self.assert_says(self.orthant("compare", "data"), 2, "at least two run folders, but got 1", "orthant report")
        self.assert_says(self.orthant("compare", *["data"] * 16), 2, "at most 15 runs, but got 16")
        self.assert_says(self.orthant("compare", "data", "data/tb"), 1, "data/tb is not a run folder",
                         "no metrics.jsonl")
        self.assert_says(self.orthant("compare", "data", "data", "--output", "missing/page.html"), 1,
                         "--output missing/page.html", "No such file")
        self.assertFalse((self.folder / "compare.html").exists())
        self.write_records("late", [{**record, "step": record["step"] + 10} for record in self.records_of("data")])
        self.assertEqual(self.orthant("compare", "data", "late").code, 0)
        self.assert_in_page("No other run has a step in common with data")


@unittest.skipUnless(chromium(), "Chromium is not installed; on Debian: apt-get install chromium")
class LongPages(ProcessTest):
    """Both pages in Chromium: no message on the console, no request, nothing wider than the screen, and text that
    stands out from its background."""

    def setUp(self):
        super().setUp()
        self.browser = Browser()
        self.addCleanup(self.browser.close)

    # The parts that are wider than the screen, except inside an element that scrolls by itself.
    WIDE = """[...document.querySelectorAll("body *")].filter(e => !e.closest(".wide, pre, script, #hover") &&
        e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.tagName + "." + e.className)"""
    # The texts of charts that reach beyond their drawing.
    CUT = """[...document.querySelectorAll("svg.chart")].filter(svg => svg.getBoundingClientRect().width > 0)
        .flatMap(svg => { const frame = svg.getBoundingClientRect(); return [...svg.querySelectorAll("text")].filter(t => {
        const box = t.getBoundingClientRect(); return box.left < frame.left - 1 || box.right > frame.right + 1; })
        .map(t => t.textContent); })"""
    # The lowest contrast of a text with its card or the page, by the formula of WCAG 2.
    CONTRAST = """(() => {
        const rgb = text => text.match(/[\\d.]+/g).map(Number);
        const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 :
            ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
        return Math.min(...[...document.querySelectorAll("h1, h2, p, td, th, li, dd, dt, svg text")].map(e => {
            const style = getComputedStyle(e), color = rgb(e.tagName === "text" ? style.fill : style.color).slice(0, 3);
            const [a, b] = [light(color), light(behind(e))].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05); })); })()"""

    def check_page(self, page):
        for width in (1280, 400):
            for dark in (False, True):
                with self.subTest(page=page.name, width=width, dark=dark):
                    self.browser.open(page, width, dark)
                    self.assertEqual(self.browser.value("document.documentElement.scrollWidth"), width)
                    self.assertEqual(self.browser.value(self.WIDE), [])
                    self.assertEqual(self.browser.value(self.CUT), [])
                    self.assertGreater(self.browser.value(self.CONTRAST), 4.5)
                    background = self.browser.value("getComputedStyle(document.body).backgroundColor")
                    self.assertEqual(background, "rgb(15, 20, 27)" if dark else "rgb(245, 246, 248)")
                    self.check_hover()
                    self.assertEqual(self.browser.complaints, [])

    def check_hover(self):
        """The box under the pointer has the values of the nearest step."""
        x, y = self.browser.value("""(() => { const svg = [...document.querySelectorAll("#loss svg.chart")].find(
            s => s.getBoundingClientRect().width > 0); svg.scrollIntoView({block: "center"});
            const box = svg.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()""")
        self.browser.move_pointer(x, y)
        said = self.browser.value('document.getElementById("hover").textContent')
        self.assertRegex(said, r"^step \d+\n.*  \d")
        self.assertFalse(self.browser.value('document.getElementById("hover").hidden'))

    def test_report_and_comparison(self):
        self.train_well(*SHORT, "job.dump_folder=pipeline", "parallelism.pipeline_parallel_degree=2")
        self.train_well(*SHORT, "job.dump_folder=a-name-that-is-as-long-as-the-names-of-runs-in-a-large-sweep-often-are",
                        'job.description="a description, with a_word_that_is_too_long_for_a_narrow_screen_and_must_be_broken"')
        folders = [path.parent.name for path in self.folder.glob("*/metrics.jsonl")]
        for i in range(6):
            shutil.copytree(self.folder / "pipeline", self.folder / f"copy-{i}")
            folders.append(f"copy-{i}")
        self.assertEqual(self.orthant("compare", *folders).code, 0)
        for page in (*self.folder.glob("*/report.html"), self.folder / "compare.html"):
            if not page.parent.name.startswith("copy"):
                self.check_page(page)

    def test_the_checks_can_fail(self):
        page = self.folder / "bad.html"
        page.write_text("<!doctype html><body style='background: #fff'><p style='color: #ccc'>pale</p>"
                        "<div style='width: 3000px'>wide</div><svg class=chart width=50><text x=40 y=20>cut off</text></svg>"
                        "<script>console.log('said'); missing();</script>")
        self.browser.open(page, 400, False)
        self.assertGreater(self.browser.value("document.documentElement.scrollWidth"), 400)
        self.assertIn("DIV.", self.browser.value(self.WIDE))
        self.assertEqual(self.browser.value(self.CUT), ["cut off"])
        self.assertLess(self.browser.value(self.CONTRAST), 2)
        self.assertEqual(len(self.browser.complaints), 2)


if __name__ == "__main__":
    main()
