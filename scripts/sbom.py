#!/usr/bin/env python3
"""Writes the bill of materials of a release, in SPDX 2.3 as JSON, to standard output.

    scripts/sbom.py --version VERSION --commit HASH --libtorch FOLDER --archives FILE.tar.gz … [--package FILE.deb]

It holds what the files themselves say: an archive's share/doc/tessera/packages.txt (the Debian packages that its libraries come
from) and share/doc/tessera/libraries (their copyright files), the fields of the Debian package, and the metadata of the LibTorch
wheels, whose hashes are those of scripts/libtorch-requirements.txt. SOURCE_DATE_EPOCH is its time.
"""
import argparse
import datetime
import email.parser
import hashlib
import json
import os
import pathlib
import re
import subprocess
import tarfile
import urllib.parse
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Debian packages without a library: their headers are compiled into the programs.
HEADERS = ("libboost1.81-dev", "libcli11-dev", "libstb-dev", "libtomlplusplus-dev", "rapidjson-dev")
NONE = "NOASSERTION"


class Bill:
    def __init__(self, version, commit):
        created = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
        self.document = {
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"tessera-{version}",
            "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'tessera/{version}/{commit}')}",
            "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: tessera-scripts/sbom.py"]},
            "packages": [], "relationships": [], "hasExtractedLicensingInfos": []}
        self.licences, self.known = {}, {}

    def licence(self, name, text):
        """Returns the reference to a licence text that has no name in SPDX; equal texts are one."""
        reference = self.licences.get(text)
        if reference is None:
            reference = self.licences[text] = "LicenseRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)
            self.document["hasExtractedLicensingInfos"].append({"licenseId": reference, "name": name, "extractedText": text})
        return reference

    def package(self, name, version, **fields):
        key = (name, version)
        if key not in self.known:
            self.known[key] = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{version}".replace("+", "-plus-"))
            self.document["packages"].append({
                "SPDXID": self.known[key], "name": name, "versionInfo": version, "filesAnalyzed": False, "downloadLocation": NONE,
                "licenseConcluded": NONE, "licenseDeclared": NONE, "copyrightText": NONE, **fields})
        return self.known[key]

    def relate(self, one, how, other):
        relation = {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}
        if relation not in self.document["relationships"]:
            self.document["relationships"].append(relation)


def purl(text):
    return [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": text}]


def sha256(path):
    with open(path, "rb") as file:
        return [{"algorithm": "SHA256", "checksumValue": hashlib.file_digest(file, "sha256").hexdigest()}]


def debian_package(bill, name, version, copyright_text):
    # Where Debian keeps the sources of every version.
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", name],
                           capture_output=True, text=True)
    source, source_version = asked.stdout.split() if asked.returncode == 0 else (name, version)
    short = sorted(set(re.findall(r"(?m)^License: *(\S.*)$", copyright_text)))
    return bill.package(
        name, version, supplier="Organization: Debian",
        downloadLocation=f"https://snapshot.debian.org/package/{source}/{urllib.parse.quote(source_version)}/",
        licenseDeclared=bill.licence(f"{name}-copyright", copyright_text),
        licenseComments="The copyright file of the Debian package" + (f", which names {', '.join(short)}" if short else ""),
        externalRefs=purl(f"pkg:deb/debian/{name}@{urllib.parse.quote(version, safe='')}?arch=amd64&distro=debian-12"))


def wheels(bill, libtorch):
    """Yields the wheels that LibTorch for the CPU is made of."""
    pins = dict(re.findall(r"(?m)^(\S+==\S+) --hash=sha256:([0-9a-f]{64})$", (ROOT / "scripts/libtorch-requirements.txt").read_text()))
    for pin, digest in pins.items():
        name, version = pin.split("==")
        info, = libtorch.glob(f"{name.replace('-', '_')}-{version}.dist-info")
        metadata = email.parser.Parser().parsestr((info / "METADATA").read_text(errors="replace"), headersonly=True)
        declared = metadata["License-Expression"] or metadata["License"]
        files = sorted(file for file in (info / "licenses").iterdir() if file.is_file())
        if declared.startswith("LicenseRef-"):
            declared = bill.licence(declared.removeprefix("LicenseRef-"), "\n".join(file.read_text(errors="replace") for file in files))
        yield bill.package(
            name, version, downloadLocation=f"https://pypi.org/project/{name}/{version}/", licenseDeclared=declared,
            comment="Only the libraries that the CPU build loads are carried; the licences of what is inside them come with them.",
            checksums=[{"algorithm": "SHA256", "checksumValue": digest}], externalRefs=purl(f"pkg:pypi/{name}@{version}"))


def headers(bill):
    """Yields the packages whose headers are compiled in, as they are installed here."""
    for name in HEADERS:
        asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", name], capture_output=True, text=True)
        if asked.returncode == 0:
            yield debian_package(bill, name, asked.stdout, pathlib.Path(f"/usr/share/doc/{name}/copyright").read_text(errors="replace"))


def add_archive(bill, path, tessera, torch):
    described = bill.package(path.name, bill.document["name"].removeprefix("tessera-"), packageFileName=path.name,
                             checksums=sha256(path), licenseDeclared=NONE)
    bill.relate("SPDXRef-DOCUMENT", "DESCRIBES", described)
    bill.relate(described, "CONTAINS", tessera)
    inside = {}
    with tarfile.open(path) as archive:
        for member in archive:
            place = member.name.partition("/")[2]
            if place == "share/doc/tessera/packages.txt" or place.startswith("share/doc/tessera/libraries/") and member.isfile():
                inside[place.removeprefix("share/doc/tessera/")] = archive.extractfile(member).read().decode(errors="replace")
            elif place == "lib/libtorch/torch/lib/libtorch_cpu.so":
                for each in torch:
                    bill.relate(described, "CONTAINS", each)
    for line in inside.get("packages.txt", "").splitlines():
        name, version = line.split()
        bill.relate(described, "CONTAINS", debian_package(bill, name, version, inside[f"libraries/{name}"]))


def add_package(bill, path, tessera, torch):
    fields = subprocess.run(["dpkg-deb", "--field", path, "Version", "Depends"], check=True, capture_output=True, text=True).stdout
    described = bill.package(path.name, re.search(r"Version: (\S+)", fields)[1], packageFileName=path.name, checksums=sha256(path))
    bill.relate("SPDXRef-DOCUMENT", "DESCRIBES", described)
    bill.relate(described, "CONTAINS", tessera)
    names = subprocess.run(["dpkg-deb", "--contents", path], check=True, capture_output=True, text=True).stdout
    if "/libtorch_cpu.so" in names:
        for each in torch:
            bill.relate(described, "CONTAINS", each)
    depends = set(re.findall(r"(?:Depends: |, )([^ ,]+)", fields))
    for (name, _), reference in list(bill.known.items()):
        if name in depends:
            bill.relate(described, "DEPENDS_ON", reference)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--libtorch", required=True, type=pathlib.Path)
    parser.add_argument("--archives", nargs="+", type=pathlib.Path, default=[])
    parser.add_argument("--package", type=pathlib.Path)
    options = parser.parse_args()
    bill = Bill(options.version, options.commit)
    tessera = bill.package(
        "tessera", options.version, licenseConcluded="Apache-2.0", licenseDeclared="Apache-2.0", primaryPackagePurpose="APPLICATION",
        copyrightText="Copyright 2026 The Tessera authors", sourceInfo=f"git commit {options.commit}")
    model = bill.package(
        "tessera-emoji-model", options.version, primaryPackagePurpose="OTHER", licenseDeclared="Apache-2.0",
        licenseComments=re.search(r"(?m)^Pictures are rendered.*$", (ROOT / "assets/emoji/README.md").read_text())[0])
    bill.relate(tessera, "CONTAINS", model)
    for each in headers(bill):
        bill.relate(tessera, "CONTAINS", each)
    torch = list(wheels(bill, options.libtorch))
    for path in sorted(options.archives):
        add_archive(bill, path, tessera, torch)
    if options.package:
        add_package(bill, options.package, tessera, torch)
    print(json.dumps(bill.document, indent=1))


if __name__ == "__main__":
    main()
