#!/usr/bin/env bash
# Chromium, with which the tests open the HTML report. Installs Debian's where this may be done, and never fails.
#
#   scripts/setup_browser.sh           installs where CI is set, else tells how
#   scripts/setup_browser.sh install   installs
set -uo pipefail

say() { printf 'setup: %s\n' "$1"; }

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
hint="the tests of the HTML report need it (Debian: apt-get install chromium)"
if [ "${1:-}" != install ] && [ -z "${CI:-}" ]; then
    say "there is no Chromium: $hint, and are skipped"
elif ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    say "Chromium is not there and cannot be installed from here: $hint"
else
    say "installing Chromium, $hint"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >"$log" 2>&1; then
        tail -5 "$log"
        say "Chromium could not be installed"
    fi
    rm -f "$log"
fi
exit 0
