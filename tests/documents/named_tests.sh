#!/bin/sh
# named_tests.sh ROOT DOCUMENT…: checks that every test that a document names as `Suite.Name` exists.
set -eu
root=$1
shift
missing=0 count=0
for document in "$@"; do
  for name in $(grep -oE '`[A-Z][A-Za-z0-9]+\.[A-Z][A-Za-z0-9]+`' "$root/$document" | tr -d '`' | sort -u); do
    count=$((count + 1))
    if ! grep -rqE "^(TEST|TEST_F|TEST_P)\(${name%.*}, ${name#*.}\)" --include='*_test.cc' \
      "$root/base" "$root/control" "$root/server" "$root/client" "$root/models" "$root/parallel" "$root/runtime" \
      "$root/tests"; then
      echo "$document names $name, which is not a test"
      missing=$((missing + 1))
    fi
  done
done
[ $count -gt 0 ] || { echo "no test is named"; exit 1; }
echo "$count tests named, $missing missing"
[ $missing = 0 ]
