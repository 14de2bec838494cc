#!/bin/sh
# Finds Azurite, the emulator of Azure Blob Storage that the tests of az:// run against, or installs it from npm into
# .azurite. Prints the path of its program. Where there is none to be had it says what is missing: those tests are
# skipped then, and in CI (CI=true), where a skipped test is a failed one, this fails at once instead of an hour later.
#
#     scripts/azurite.sh                   quick when there is one
#     AZURITE=/path/to/azurite-blob        that one, and no other

set -u

version=3.37.0
own=.azurite/node_modules/.bin/azurite-blob

without() {
    if [ "${CI:-}" = true ]; then
        echo "$1. The tests of az:// need it, and CI skips nothing: install Node.js with npm, or set AZURITE" >&2
        exit 1
    fi
    echo "$1: THE TESTS OF az:// WILL BE SKIPPED. Install Node.js with npm, or set AZURITE to an azurite-blob" >&2
    exit 0
}

[ -z "${AZURITE:-}" ] || { command -v "$AZURITE" || without "AZURITE: there is no $AZURITE"; exit; }
[ -x "$own" ] || {
    command -v npm >/dev/null || without "There is no npm, which installs Azurite"
    echo "installing azurite $version, for the tests of az:// (a minute or so) ..." >&2
    npm install --prefix .azurite --silent --no-audit --no-fund "azurite@$version" >&2 || without "npm could not install azurite $version"
}
[ -x "$own" ] || without "npm installed no $own"
echo "$PWD/$own"
