#!/bin/sh
# Finds Azurite, the emulator of Azure Blob Storage that the tests of az:// run against, or installs it from npm into
# .azurite. Prints the path of its program. Where there is no npm it says so, and those tests are skipped.
#
#     scripts/azurite.sh                   quick when there is one
#     AZURITE=/path/to/azurite-blob        that one, and no other

set -u

version=3.37.0
own=.azurite/node_modules/.bin/azurite-blob

[ -z "${AZURITE:-}" ] || { command -v "$AZURITE" || echo "AZURITE: there is no $AZURITE; the tests of az:// will be skipped" >&2; exit; }
[ -x "$own" ] || {
    command -v npm >/dev/null || { echo "No npm: the tests of az:// will be skipped" >&2; exit; }
    echo "installing azurite $version, for the tests of az:// (a minute or so) ..." >&2
    npm install --prefix .azurite --silent --no-audit --no-fund "azurite@$version" >&2
}
[ ! -x "$own" ] || echo "$PWD/$own"
