"""Prometheus' configuration, the alert rules and Grafana's dashboard of deploy/monitoring, compared with a real server:
a real Prometheus scrapes `tessera serve --fake-workers`, and whatever a rule or a panel reads has to be there.

    monitoring_test.py TESSERA     from the repository's root; Prometheus is that of scripts/setup.sh --checks
"""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
import fake_server  # noqa: E402

MONITORING = pathlib.Path("deploy/monitoring")
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/tessera.json").read_text())
SELECTOR = re.compile(r"\b(?:(?:tessera|process)_[a-z_]+|up)\b(?:\{[^}]*\})?")
DEADLINE = 120


def program(name):
    for path in (f".deps/prometheus/usr/bin/{name}", f"/usr/bin/{name}"):
        if os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise FileNotFoundError(f"{name} is missing: scripts/setup.sh --checks fetches it")


def promtool(*arguments, cwd="."):
    return subprocess.run([program("promtool"), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


def wait_until(what, condition):
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"never: {what}")
        time.sleep(0.05)
    return value


class Prometheus:
    """Runs Prometheus on a free port, with the configuration of deploy/monitoring except for target and scrape interval."""

    def __init__(self, folder, admin_port):
        self.folder = pathlib.Path(folder)
        config = (MONITORING / "prometheus.yml").read_text()
        for old, new in (('targets: ["tessera:9090"]', f'targets: ["127.0.0.1:{admin_port}"]'),
                         ("scrape_interval: 15s", "scrape_interval: 200ms"),
                         ("evaluation_interval: 15s", "evaluation_interval: 500ms")):
            assert config.count(old) == 1, f"prometheus.yml has no {old}"
            config = config.replace(old, new)
        (self.folder / "prometheus.yml").write_text(config)
        shutil.copy(MONITORING / "alerts.yml", self.folder)
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                 "--web.listen-address=127.0.0.1:0"],
                cwd=self.folder, stdout=subprocess.DEVNULL, stderr=log, env={"GOMAXPROCS": "2"})
        self.url = "http://" + wait_until("Prometheus listens", self.address)
        wait_until("Prometheus is ready", self.is_ready)

    def address(self):
        log = (self.folder / "log").read_text()
        if self.process.poll() is not None:
            raise RuntimeError(f"Prometheus ended: {log}")
        found = re.search(r'msg="Listening on" address=(\S+)', log)
        return found and found[1]

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}/-/ready", timeout=60).status == 200
        except urllib.error.HTTPError:
            return False

    def get(self, path, **query):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{query}: {error.read().decode()}") from error

    def series(self, query):
        """Returns the labels of each series of an instant query that has a number."""
        data = self.get("query", query=query)
        assert data["resultType"] == "vector", query
        return [result["metric"] for result in data["result"] if not math.isnan(float(result["value"][1]))]

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def panel_queries():
    """(panel's title, query, legend) of each query, with the variables as Grafana fills them in for "All"."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$instance", ".*").replace("$model", ".*").replace("$__rate_interval", "1m")
            assert "$" not in query, f"{panel['title']}: an unknown variable in {query}"
            yield panel["title"], query, target["legendFormat"]


class MonitoringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = fake_server.Server(TESSERA, "limits: {queued_jobs: 2}\n", script="step-time=5")
        cls.addClassCleanup(cls.server.stop)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.prometheus = Prometheus(folder.name, cls.server.ports["admin"])
        cls.addClassCleanup(cls.prometheus.stop)
        wait_until("the server is scraped", lambda: cls.prometheus.series('up{job="tessera"} == 1'))

    def generate(self, prompt, n=1):
        body = json.dumps({"prompt": prompt, "n": n}).encode()
        request = urllib.request.Request(f"{self.server.url}/v1/images/generations", body,
                                         {"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code

    def make_work(self):
        """One of each: an image that is made, one that fails, a call that is refused because the queue is full."""
        self.assertEqual([self.generate("red apple"), self.generate("[fail]"), self.generate("red apple", n=10)],
                         [200, 500, 429])

    def found(self, query):
        """The series of the query, once it has any; work goes on meanwhile, so that rates are of something."""
        deadline = time.monotonic() + DEADLINE
        while not (series := self.prometheus.series(query)):
            if time.monotonic() > deadline:
                self.fail(f"no series: {query}")
            self.make_work()
        return series

    def test_every_query_of_the_dashboard_finds_series_with_the_labels_of_its_legend(self):
        for title, query, legend in panel_queries():
            with self.subTest(panel=title, query=query):
                for labels in self.found(query):
                    for label in re.findall(r"\{\{(\w+)\}\}", legend):
                        self.assertIn(label, labels)

    def test_the_variables_and_annotations_of_the_dashboard_find_values(self):
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
                for labels in self.found(metric.replace("$instance", ".*")):
                    self.assertIn(label, labels)
        for annotation in DASHBOARD["annotations"]["list"]:
            for selector in SELECTOR.findall(annotation["expr"].replace("$instance", ".*")):
                self.found(selector)

    def test_every_alert_reads_series_that_there_are(self):
        rules = [rule for group in self.prometheus.get("rules")["groups"] for rule in group["rules"]]
        self.assertGreaterEqual(len(rules), 15)
        for rule in rules:
            with self.subTest(alert=rule["name"]):
                selectors = SELECTOR.findall(rule["query"])
                self.assertTrue(selectors)
                read = [set().union(*self.found(selector)) for selector in selectors]
                # The expression must keep the labels that an annotation names.
                left = re.match(r"\(*(?:sum|max) by \(([^)]*)\)", rule["query"])
                labels = set(left[1].split(", ")) if left else read[0]
                named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
                self.assertLessEqual(named, labels)

    def test_rules_are_evaluated_without_errors(self):
        def evaluated():
            rules = [rule for group in self.prometheus.get("rules")["groups"] for rule in group["rules"]]
            return all(rule["health"] != "unknown" for rule in rules) and rules

        for rule in wait_until("all rules were evaluated", evaluated):
            self.assertEqual(rule["health"], "ok", rule)

    def test_a_series_that_there_is_not_is_noticed(self):
        self.assertEqual(self.prometheus.series("tessera_queued_jbos"), [])
        self.assertEqual(self.prometheus.series('tessera_storage_state{state="fine"}'), [])
        self.assertEqual(SELECTOR.findall('sum(rate(tessera_images_total{outcome="a"}[5m])) / up'),
                         ['tessera_images_total{outcome="a"}', "up"])


class FilesTest(unittest.TestCase):
    def test_the_configuration_is_valid(self):
        checked = promtool("check", "config", MONITORING / "prometheus.yml")
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_each_alert_fires_and_is_silent_when_it_should(self):
        tested = promtool("test", "rules", MONITORING / "alerts_test.yml")
        self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)

    def test_an_alert_that_does_not_fire_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            rules = (MONITORING / "alerts.yml").read_text()
            self.assertEqual(rules.count("tessera_oldest_wait_seconds > 900"), 1)
            pathlib.Path(folder, "alerts.yml").write_text(rules.replace("_seconds > 900", "_seconds > 9000"))
            shutil.copy(MONITORING / "alerts_test.yml", folder)
            self.assertNotEqual(promtool("test", "rules", "alerts_test.yml", cwd=folder).returncode, 0)

    def test_each_alert_has_a_test_a_severity_and_a_runbook_of_a_line(self):
        rules = (MONITORING / "alerts.yml").read_text()
        tests = (MONITORING / "alerts_test.yml").read_text()
        alerts = re.split(r"^ +- alert: ", rules, flags=re.M)[1:]
        self.assertEqual(len(alerts), 16)
        for alert in alerts:
            name = alert.split("\n")[0]
            self.assertIn(f'alertname="{name}"', tests)
            self.assertRegex(alert, r"labels: \{severity: (page|ticket)\}", name)
            self.assertRegex(alert, r'\n +summary: ".{20,}"\n +runbook: ".{60,}"\n', name)

    def test_panels_have_titles_descriptions_and_numbers_of_their_own(self):
        panels = DASHBOARD["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        self.assertEqual(len({panel["title"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            self.assertFalse(cells & taken, f"{panel['title']} lies over another panel")
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            taken |= cells
            if panel["type"] != "row":
                self.assertTrue(panel["description"], panel["title"])


if __name__ == "__main__":
    TESSERA = sys.argv.pop(1)
    unittest.main()
