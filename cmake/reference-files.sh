#!/bin/sh
# reference-files.sh TESSERA SHARE: writes files that are generated from the program's tables of options to SHARE, laid out as
# installed: manual pages, and the completions of shells in the folders where these look for them.
set -eu
tessera=$1 share=$2
rm -rf "$share/man" "$share/bash-completion" "$share/zsh" "$share/fish"
"$tessera" manual --out "$share/man/man1"
completion() {
  mkdir -p "$share/${2%/*}"
  "$tessera" completion "$1" >"$share/$2"
}
completion bash bash-completion/completions/tessera
completion zsh zsh/site-functions/_tessera
completion fish fish/vendor_completions.d/tessera.fish
