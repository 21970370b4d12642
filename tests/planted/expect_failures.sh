#!/bin/sh
# expect_failures.sh RUNNER DIR ONLY BUG: the golden runner with that bug switched on must report failed cases, and must
# get to the end of its run: a crash proves nothing.
last=$(TESSERA_PLANTED_BUG="$4" "$1" "$2" --only "$3" | tail -n 1)
echo "$last"
case "$last" in
*" passed, 0 failed, "*) echo "the planted bug went unnoticed"; exit 1 ;;
*" passed, "*" failed, "*" not built") exit 0 ;;
*) echo "the run did not reach its end"; exit 1 ;;
esac
