"""helm install|upgrade RELEASE CHART, as far as docs/deploy-kubernetes.md needs it: the values are checked, the chart is
rendered, and kubectl applies it. An option that it does not know is an error."""

import pathlib
import subprocess
import sys

import chart

OPTIONS = {"--values": "-values", "--set": "-set", "--set-file": "-set-file", "--namespace": "-namespace"}


def main(words):
    places, options = [], []
    words = iter(words)
    for word in words:
        if word in OPTIONS:
            options += [OPTIONS[word], next(words)]
        elif word == "--install" and places == ["upgrade"]:
            continue
        elif word.startswith("-"):
            sys.exit(f"helm: the stand-in does not know {word}")
        else:
            places.append(word)
    command, release, folder = places
    if command not in ("install", "upgrade") or pathlib.Path(folder).resolve() != chart.CHART.resolve():
        sys.exit(f"helm: the stand-in does not know {places}")
    error = chart.check_values(*options)
    if error is not None:
        sys.exit(f"helm: values don't meet the specifications of the schema: {error}")
    rendered = chart.run("-name", release, *options)
    if rendered.returncode != 0:
        sys.exit(rendered.stderr)
    subprocess.run(["kubectl", "apply", "-f", "-"], input=rendered.stdout, text=True, check=True)
    print(chart.run("-notes", "-name", release, *options).stdout)


main(sys.argv[1:])
