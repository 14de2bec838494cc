#!/bin/sh
# Finds a Chromium for the tests that look at Dagster in a browser, and installs one where that needs no question:
# as root, or with a sudo that asks for no password, from the packages of Debian; else the one that
# Playwright keeps for itself. Prints its path. Where there is none it says so, and those tests are skipped.
#
#     scripts/chromium.sh               quick when there is one
#     CHROMIUM=/path/to/chromium        that one, and no other

set -u

found() { # the names of tests/support/browser.py
    if [ -n "${CHROMIUM:-}" ]; then
        command -v "$CHROMIUM"
        return
    fi
    for name in chromium google-chrome google-chrome-stable; do
        command -v "$name" && return
    done
    .venv/bin/python -m tests.support.browser 2>/dev/null
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

from_packages() {
    command -v apt-get >/dev/null && as_root true 2>/dev/null || return 1
    echo "installing chromium, for the tests in a browser (a minute or so) ..." >&3
    as_root apt-get -qq update && as_root apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends chromium fonts-dejavu-core
}

from_playwright() {
    echo "installing Playwright's chromium, for the tests in a browser ..." >&3
    PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT=10000 .venv/bin/python -m playwright install chromium
}

found && exit
[ -z "${CHROMIUM:-}" ] || { echo "CHROMIUM: there is no $CHROMIUM; the tests in a browser will be skipped" >&2; exit; }
log=$(mktemp) || exit
{ from_packages || from_playwright; } 3>&2 >"$log" 2>&1
found || {
    tail -n 5 "$log" >&2
    echo 'No Chromium: the tests in a browser will be skipped. Get it with "sudo apt install chromium" (Debian) or ".venv/bin/playwright install chromium", or name one with "export CHROMIUM=/path/to/chromium"' >&2
}
rm -f "$log"
