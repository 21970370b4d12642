"""Serves a folder of a model as a hub until standard input ends: serve_model.py ORG/NAME FOLDER. Prints its address."""

import pathlib
import sys

import hub as hubs

name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
hub = hubs.Hub(name, files)
print(hub.url, flush=True)
sys.stdin.read()
hub.close()
