"""The completions that `tessera completion` prints, loaded by the shells themselves and queried; and
the manual pages, read by mandoc and man. completion_test.py TESSERA PLANTED: the second program has additional options."""

import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest

TESSERA, PLANTED = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
DEADLINE = 120


def output_of(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} ends with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def script_of(program, shell):
    return output_of(program, "completion", shell)


class Bash:
    """Fills in what readline would and calls the function that is registered."""
    name = "bash"

    def __init__(self, script, folder):
        self.script, self.folder = script, folder

    def offers(self, line):
        # As readline splits it: = is a separate word.
        words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith(" ") else [])
        program = self.script + "\n" + """
registered=$(complete -p tessera)
[[ $registered == 'complete -F _tessera tessera' ]] || { echo "$registered" >&2; exit 1; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_tessera tessera "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
((${#COMPREPLY[@]} == 0)) || printf '%s\\n' "${COMPREPLY[@]}"
"""
        return set(output_of("bash", "--norc", "-uc", program, "bash", *words, cwd=self.folder).split("\n")) - {""}


class Fish:
    name = "fish"

    def __init__(self, script, folder):
        self.script, self.folder = script, folder

    def offers(self, line):
        with tempfile.TemporaryDirectory() as home:
            file = pathlib.Path(home) / "tessera.fish"
            file.write_text(self.script)
            text = output_of("fish", "--no-config", "-c", f"source {file}; complete -C {shlex_fish(line)}", cwd=self.folder,
                             env={"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8"})
        offered = {each.split("\t")[0] for each in text.split("\n")} - {""}
        # For --option=value the whole word is returned.
        return {re.sub(r"^--[a-z-]+=", "", each).rstrip("/") for each in offered}


def shlex_fish(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Zsh:
    """An interactive zsh at the end of a pseudo-terminal, in which the key Tab reports what compadd is given."""
    name = "zsh"
    PRELUDE = """
PS1= ; unsetopt zle_bracketed_paste beep 2>/dev/null
autoload -Uz compinit && compinit -D -u
offered=()
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then builtin compadd "$@"; return; fi
  local -a hits; builtin compadd -O hits "$@"; offered+=("${hits[@]}"); builtin compadd "$@"
}
report() { offered=(); zle complete-word; BUFFER=; print -rC1 -- "<<<" $offered ">>>"; }
zle -C complete-word complete-word _main_complete
zle -N report; bindkey '^T' report
zstyle ':completion:*' list-prompt ''
LISTMAX=10000
"""

    def __init__(self, script, folder):
        self.home = tempfile.TemporaryDirectory()
        home = pathlib.Path(self.home.name)
        (home / "_tessera").write_text(script)
        (home / "prelude").write_text(f"fpath=({home} $fpath)\n" + self.PRELUDE)
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8"})
        self.read_until(f". {home}/prelude; print -r -- rea''dy\n", "ready")

    def read_until(self, text, mark):
        os.write(self.terminal, text.encode())
        deadline, seen = time.monotonic() + DEADLINE, ""
        while mark not in seen:
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"zsh does not say {mark!r} but {seen!r}")
            seen += os.read(self.terminal, 65536).decode(errors="replace")
        return seen

    def offers(self, line):
        seen = self.read_until(f"{line}\x14", ">>>")
        listed = re.search(r"<<<(.*?)>>>", seen, re.DOTALL).group(1)
        return {each.strip().rstrip("/") for each in listed.split("\n")} - {""}

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.process, 0)
        self.home.cleanup()


def help_of(*command):
    """The names of commands and options that --help prints, by what begins their lines."""
    text = output_of(*command, "--help")
    names = set()
    for line in re.findall(r"(?m)^  (-\S+)", text):
        names.update(line.split(","))
    commands = set(re.findall(r"(?m)^  ([a-z]+) ", text.partition("Subcommands:")[2]))
    return names, commands


class CompletionTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        place = pathlib.Path(self.folder.name)
        (place / "some folder").mkdir()
        (place / "models").mkdir()
        (place / "prompts.txt").write_text("red apple\n")

    def shells(self, program):
        for kind in (Bash, Zsh, Fish):
            shell = kind(script_of(program, kind.name), self.folder.name)
            if kind is Zsh:
                self.addCleanup(shell.close)
            yield shell

    def test_every_shell_offers_every_command_and_option_of_the_help(self):
        _, commands = help_of(TESSERA)
        self.assertGreaterEqual(commands, {"generate", "batch", "serve", "completion"})
        options = {command: help_of(TESSERA, command)[0] for command in commands}
        for shell in self.shells(TESSERA):
            with self.subTest(shell=shell.name):
                self.assertLessEqual(commands, shell.offers("tessera "))
                for command in sorted(commands):
                    offered = shell.offers(f"tessera {command} -") | shell.offers(f"tessera {command} --")
                    self.assertLessEqual(options[command] - offered, set(), command)

    def test_values_that_are_words_are_offered_and_nothing_else(self):
        for shell in self.shells(TESSERA):
            with self.subTest(shell=shell.name):
                for line in ("tessera generate --dtype ", "tessera generate --dtype="):
                    self.assertEqual(shell.offers(line), {"fp64", "fp32", "bf16"}, line)
                self.assertEqual(shell.offers("tessera jobs --status c"), {"cancelled"})
                self.assertEqual(shell.offers("tessera generate --noise "), {"tessera", "torch-cpu"})
                self.assertEqual(shell.offers("tessera completion "), {"bash", "zsh", "fish"})
                self.assertEqual(shell.offers("tessera generate --device "), {"cpu", "cuda"})

    def test_files_and_folders_are_offered_where_they_are_taken(self):
        everything = {"models", "some folder", "prompts.txt"}
        for shell in self.shells(TESSERA):
            with self.subTest(shell=shell.name):
                plain = {each.replace("\\ ", " ") for each in shell.offers("tessera batch ")}
                self.assertEqual(plain & everything, everything)
                self.assertIn("prompts.txt", shell.offers("tessera serve --config pro"))
                folders = {each.replace("\\ ", " ") for each in shell.offers("tessera batch prompts.txt --out ")}
                self.assertEqual(folders & everything, {"models", "some folder"})
                self.assertIn("models", shell.offers("tessera generate x --model mo"))
                self.assertEqual(shell.offers("tessera generate --seed ") & everything, set(), "a number is no file")
                self.assertEqual(shell.offers("tessera cancel ") & everything, set(), "a job is no file")

    def test_a_planted_option_appears_by_itself(self):
        for shell in self.shells(PLANTED):
            with self.subTest(shell=shell.name):
                self.assertIn("paint", shell.offers("tessera "))
                self.assertNotIn("generate", shell.offers("tessera "))
                offered = shell.offers("tessera paint --")
                self.assertLessEqual({"--planted-words", "--planted-file", "--planted-folder", "--planted-flag"}, offered)
                self.assertEqual(shell.offers("tessera paint --planted-words "), {"ochre", "umber"})
                self.assertEqual(shell.offers("tessera paint -p "), {"ochre", "umber"})
                self.assertIn("prompts.txt", shell.offers("tessera paint --planted-file "))
                self.assertNotIn("prompts.txt", shell.offers("tessera paint --planted-folder "))

    def test_another_shell_is_refused_with_those_there_are(self):
        done = subprocess.run([TESSERA, "completion", "tcsh"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("valid values are bash, zsh and fish", done.stderr)


class ManualTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        for name, program in (("tessera", TESSERA), ("planted", PLANTED)):
            output_of(program, "manual", "--out", f"{cls.place.name}/{name}/man1")

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def pages(self, name="tessera"):
        return sorted(pathlib.Path(self.place.name, name, "man1").iterdir())

    def text_of(self, page):
        return re.sub(".\x08", "", output_of("mandoc", "-Tascii", "-O", "width=200", str(page)))

    def test_there_is_a_page_for_the_program_and_for_each_command(self):
        _, commands = help_of(TESSERA)
        self.assertEqual([page.name for page in self.pages()], sorted(["tessera.1", *(f"tessera-{command}.1" for command in commands)]))

    def test_mandoc_finds_nothing_to_say_about_any(self):
        for name in ("tessera", "planted"):
            done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", *map(str, self.pages(name))], capture_output=True, text=True)
            self.assertEqual((done.stdout, done.returncode), ("", 0))

    def test_mandoc_would_find_what_is_wrong(self):
        broken = pathlib.Path(self.place.name) / "broken.1"
        broken.write_text(self.pages()[0].read_text() + ".TP\n.XX\n")
        done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(broken)], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)

    def test_they_have_every_option_of_the_help_under_its_heading(self):
        _, commands = help_of(TESSERA)
        for command in sorted(commands):
            text = self.text_of(pathlib.Path(self.place.name, "tessera/man1", f"tessera-{command}.1"))
            names, _ = help_of(TESSERA, command)
            self.assertGreater(len(names), 0)
            for name in names:
                self.assertRegex(text, rf"(?m)^ +(-\w, )?{re.escape(name)}( |,|$)", f"{command} {name}")
            headings = set(re.findall(r"(?m)^([A-Z][^:\n]*):$", output_of(TESSERA, command, "--help"))) - {"Usage", "Positionals", "Options"}
            for heading in headings:
                self.assertRegex(text, rf"(?m)^ +{re.escape(heading)}$", command)
        planted = self.text_of(pathlib.Path(self.place.name, "planted/man1/tessera-paint.1"))
        self.assertIn("One of some words: don't mind [these] $signs true.", planted)
        self.assertRegex(planted, r"-p, --planted-words ochre\|umber\|N")

    def test_exit_codes_and_one_page_are_printed(self):
        page = output_of(TESSERA, "manual", "generate", env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
        self.assertIn('"1970-01-01"', page)
        self.assertIn(".SH EXIT STATUS", page)
        self.assertEqual(subprocess.run([TESSERA, "manual", "paint"], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
