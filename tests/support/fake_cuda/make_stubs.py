#!/usr/bin/env python3
"""Makes stubs of the CUDA libraries that some libraries need, in addition to the fake.

Each has the required symbols that the fake does not implement, in the required version; a call
of one reports to FakeCudaStub and returns 0. Each needs the fake, so that a look-up in a library by name finds what
the fake implements. The file `libraries` in the folder names them all, for the linker.
"""
import argparse
import collections
import pathlib
import subprocess

# The libraries by the beginnings of their symbols' names; the first that fits counts.
LIBRARIES = [
    ("cusparseLt", "libcusparseLt.so"), ("cusparse", "libcusparse.so"), ("cusolver", "libcusolver.so"),
    ("cublasLt", "libcublasLt.so"), ("cublas", "libcublas.so"), ("cudnn", "libcudnn.so"), ("cufft", "libcufft.so"),
    ("curand", "libcurand.so"), ("cuFile", "libcufile.so"), ("nvml", "libnvidia-ml.so"), ("nccl", "libnccl.so"), ("pnccl", "libnccl.so"),
    ("nvshmem", "libnvshmem_host.so"), ("cupti", "libcupti.so"), ("nvrtc", "libnvrtc.so"), ("__cuda", "libcudart.so"),
    ("cuda", "libcudart.so"), ("cu", "libcuda.so"),
]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def library_of(symbol):
    library = next((library for start, library in LIBRARIES if symbol.startswith(start)), None)
    return None if library == "libcuda.so" and not symbol[2:3].isupper() else library


def asked_for(files):
    """The symbols of each library with their versions ("" for none), and the libraries' full names."""
    symbols, names = collections.defaultdict(dict), {}
    stems = {library for _, library in LIBRARIES}
    for file in files:
        for line in run("nm", "-D", "--undefined-only", file).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if library := library_of(name):
                symbols[library][name] = version.lstrip("@")
        for line in run("readelf", "-d", file).splitlines():
            if "(NEEDED)" in line:
                needed = line.split("[")[1].rstrip("]")
                if (stem := needed.split(".so")[0] + ".so") in stems:
                    names[stem] = needed
    names["libnvidia-ml.so"] = "libnvidia-ml.so.1"  # no program is linked to it: it is opened by its name
    return symbols, names


def link(compiler, out, soname, sources, options=()):
    subprocess.run([compiler, "-x", "c", "-w", "-fno-builtin", "-fPIC", "-shared", f"-Wl,-soname,{soname}", "-o",
                    out / soname, *sources, "-x", "none", *options], check=True)


def make(library, symbols, implemented, fake, arguments):
    source, script = arguments.out / f"{library}.c", arguments.out / f"{library}.map"
    source.write_text("extern void FakeCudaStub(const char*);\n" + "".join(
        f'long {name}(void) {{ FakeCudaStub("{name}"); return 0; }}\n' for name in sorted(set(symbols) - implemented)))
    versions = collections.defaultdict(list)
    for name, version in sorted(symbols.items()):
        versions[version].append(name)
    script.write_text("".join(f"{version} {{ global: {'; '.join(names)}; }};\n"
                              for version, names in versions.items() if version))
    options = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
    link(arguments.compiler, arguments.out, library, [source], ["-Wl,--no-as-needed", fake, *options])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--fake", required=True, help="file name of the fake")
    parser.add_argument("--implemented", required=True, nargs="+", help="object files of the fake")
    parser.add_argument("--users", required=True, nargs="+", help="libraries that ask")
    arguments = parser.parse_args()
    placeholder = arguments.out / "placeholder"  # what stands for the fake, which is linked after its stubs
    placeholder.mkdir(parents=True, exist_ok=True)
    empty = placeholder / "empty.c"
    empty.write_text("")
    link(arguments.compiler, placeholder, arguments.fake, [empty])
    symbols, names = asked_for(arguments.users)
    implemented = {line.split()[-1] for line in run("nm", "--defined-only", *arguments.implemented).splitlines() if line}
    for stem, name in sorted(names.items()):
        make(name, symbols[stem], implemented, placeholder / arguments.fake, arguments)
    (arguments.out / "libraries").write_text("".join(f"{arguments.out / name}\n" for name in sorted(names.values())))


if __name__ == "__main__":
    main()
