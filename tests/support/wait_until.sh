# wait_until COMMAND…: until the command succeeds, a tenth of a second after the other; fails after a minute.
wait_until() {
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || return 1
    sleep 0.1
  done
}
