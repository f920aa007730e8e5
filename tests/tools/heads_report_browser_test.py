#!/usr/bin/env python3
"""Opens pages of `manyhead heads report` in headless Chromium and uses them as a reader does.

usage: heads_report_browser_test.py COMMAND SOURCE_DIR

Exit code 77 (skipped) where chromium is not installed. MANYHEAD_SCREENSHOTS names a folder for pictures.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
COMMAND, SOURCE = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TEXT = "The cat sat on the mat. </script><b>The cat sat</b> on\tthe mat."

# Runs in the page after its own script, and leaves what it saw where --dump-dom shows it.
PROBE = """
<script>
{
const seen = {};
const key = (target, name, more = {}) =>
    target.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true, ...more}));
const drawn = canvas => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
};
const titles = () => [...document.querySelectorAll('.view h3')].map(one => one.textContent);
const cellsNow = () => [...document.querySelectorAll('[role=gridcell]')];
seen.cells = cellsNow().length;
seen.unlabelled = cellsNow().filter(cell => !cell.getAttribute('aria-label')).length;
seen.tabStops = cellsNow().filter(cell => cell.tabIndex === 0).length;
seen.first = titles();
const target = cellsNow().find(cell => cell.getAttribute('aria-label').startsWith('layer 1, head 2,'));
target.click();
seen.clicked = titles();
seen.selected = cellsNow().filter(cell => cell.getAttribute('aria-selected') === 'true').map(cell => cell.dataset.view);
seen.hash = location.hash;
seen.colours = drawn(document.querySelector('.view canvas'));
target.dispatchEvent(new MouseEvent('click', {shiftKey: true, bubbles: true}));
const start = document.querySelector('[role=gridcell][tabindex="0"]');
start.focus();
key(start, 'ArrowDown');
key(document.activeElement, 'ArrowRight');
seen.focused = document.activeElement.getAttribute('aria-label');
key(document.activeElement, 'b');
seen.pair = titles();
key(document.activeElement, 'Escape');
seen.closed = titles();
const canvas = document.querySelector('.view canvas');
key(canvas, 'ArrowUp');
key(canvas, 'ArrowRight');
seen.status = document.getElementById('status').textContent;
const strip = document.querySelector('.tokens');
key(strip, 'Home');
seen.option = document.getElementById(strip.getAttribute('aria-activedescendant')).textContent;
seen.text = [...strip.children].map(span => span.textContent).join('');
const box = canvas.getBoundingClientRect();
canvas.dispatchEvent(new MouseEvent('mousemove', {clientX: box.left + views[0].margin + 3,
    clientY: box.top + views[0].margin + 3, bubbles: true}));
seen.tip = document.getElementById('tip').textContent;
const select = document.getElementById('metric');
seen.metrics = select.options.length;
for (const option of select.options) {
  select.value = option.value;
  select.dispatchEvent(new Event('change'));
  if (cellsNow().some(cell => /NaN|undefined/.test(cell.textContent + cell.getAttribute('aria-label'))))
    seen.broken = option.value;
}
document.getElementById('numbers').open = true;
document.getElementById('numbers').dispatchEvent(new Event('toggle'));
seen.rows = document.querySelectorAll('#numbers tbody tr').length;
seen.images = document.images.length;
seen.bold = document.querySelectorAll('b').length;
seen.labels = [...document.querySelectorAll('select, canvas, [role=grid], [role=listbox]')].every(
    one => one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || (one.labels && one.labels.length));
document.documentElement.dataset.seen = JSON.stringify(seen);
}
</script>
"""


def report(folder, *flags):
    page = pathlib.Path(folder, "report.html")
    subprocess.run([COMMAND, "heads", "report", "-p", TEXT, "--every", "1", "-o", page, *flags], check=True,
                   capture_output=True, timeout=120)
    return page


def chromium(folder, page, *flags):
    """stdout and what the page's console got."""
    run = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                          f"--user-data-dir={folder}/profile", "--enable-logging=stderr",
                          "--virtual-time-budget=10000", *flags, pathlib.Path(page).as_uri()],
                         capture_output=True, text=True, timeout=120, check=True)
    return run.stdout, [line for line in run.stderr.splitlines() if "CONSOLE" in line]


class BrowserTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def seen(self, page):
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
        dom, console = chromium(self.folder, page, "--dump-dom")
        self.assertEqual(console, [])
        found = re.search(r'data-seen="([^"]*)"', dom)
        self.assertIsNotNone(found, dom[:300])
        return json.loads(found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">")
                          .replace("&amp;", "&"))

    def test_a_head_shows_its_matrix(self):
        page = report(self.folder)
        data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
        seen = self.seen(page)
        heads = sum(layer["heads"] for layer in data["layers"])
        self.assertEqual((seen["cells"], seen["unlabelled"], seen["tabStops"]), (heads, 0, 1))
        self.assertEqual(len(seen["first"]), 1)
        self.assertEqual(seen["clicked"], ["A: Layer 1, head 2"])
        self.assertEqual(seen["selected"], ["A"])
        self.assertEqual(seen["hash"], "#1.2")
        self.assertGreater(seen["colours"], 20)
        self.assertRegex(seen["focused"], "^layer 1, head 1, KV head ")
        self.assertEqual(seen["pair"], ["A: Layer 1, head 2", "B: Layer 1, head 1"])
        self.assertEqual(seen["closed"], ["A: Layer 1, head 2"])
        last = len(data["tokens"]) - 1
        self.assertRegex(seen["status"], rf"^{last - 1} “.*” looks at 1 “.*”: [01]\.\d\d\d$")
        self.assertRegex(seen["tip"], r"^0 “.*” looks at 0 “.*”: 1\.000$")
        self.assertEqual(seen["option"], data["tokens"][0])
        self.assertEqual(seen["text"], "".join(data["tokens"]))
        self.assertIn("</script><b>The cat", seen["text"])
        self.assertEqual((seen["images"], seen["bold"]), (0, 0))
        self.assertEqual(seen["metrics"], len(data["metrics"]))
        self.assertNotIn("broken", seen)
        self.assertEqual(seen["rows"], heads)
        self.assertTrue(seen["labels"])

    def test_classes_and_effects_colour_the_grid(self):
        classes = pathlib.Path(self.folder, "classes.json")
        effects = pathlib.Path(self.folder, "effects.json")
        classes.write_text(json.dumps([{"layer": 0, "head": h, "class": "previous-token"} for h in range(2)]),
                           encoding="utf-8")
        effects.write_text(json.dumps([{"layer": 0, "head": h, "loss_before": 1, "loss_after": 0.9 + 0.2 * h}
                                       for h in range(2)]), encoding="utf-8")
        page = report(self.folder, "--classes", classes, "--effects", effects)
        seen = self.seen(page)
        self.assertEqual(seen["metrics"], 12)  # class, ten of the profile, the loss
        self.assertNotIn("broken", seen)

    def test_pictures(self):
        folder = pathlib.Path(os.environ.get("MANYHEAD_SCREENSHOTS") or self.folder)
        page = report(self.folder)
        address = page.as_uri() + "#1.0,1.2"
        for name, flags in (("light", ("--blink-settings=preferredColorScheme=1",)),
                            ("dark", ("--blink-settings=preferredColorScheme=0",))):
            picture = folder / f"{name}.png"
            run = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
                                  f"--user-data-dir={self.folder}/profile", "--window-size=1400,1900",
                                  "--virtual-time-budget=10000", f"--screenshot={picture}", *flags, address],
                                 capture_output=True, timeout=120, check=True)
            self.assertGreater(picture.stat().st_size, 20000, run.stderr)
        paper = folder / "print.pdf"
        chromium(self.folder, page, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
        self.assertEqual(paper.read_bytes()[:5], b"%PDF-")


if __name__ == "__main__":
    if CHROMIUM is None:
        print("skipped: chromium is not installed")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
