#!/bin/sh
# Finds a Python >= 3.11 and checks for a Java >= 17. Prints the path of the Python found.
# What is missing or too old is said in one line on stderr, with how to get it.
#
#     scripts/prerequisites.sh          what the installation needs
#     PYTHON=... JAVA_HOME=...          look there, and nowhere else

set -u

fail() {
    echo "$*" >&2
    exit 1
}

python_fits() { # 3.11 to 3.14, with what it takes to make a virtual environment
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

python_version() {
    "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || echo none
}

get_python='get it with "sudo apt install python3.11 python3.11-venv" (Debian, Ubuntu) or "brew install python@3.11" (macOS), or name one with "make PYTHON=/path/to/python3.11"'
get_java='get it with "sudo apt install openjdk-17-jre-headless" (Debian, Ubuntu) or "brew install openjdk@17" (macOS), or name one with "export JAVA_HOME=/path/to/jdk-17"'

found=
if [ -n "${PYTHON:-}" ]; then
    python_fits "$PYTHON" || fail "Python 3.11 to 3.14 is needed, $PYTHON is $(python_version "$PYTHON"): $get_python"
    found=$PYTHON
else
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        if python_fits "$name"; then
            found=$name
            break
        fi
    done
    [ -n "$found" ] || fail "Python 3.11 to 3.14 is needed, python3 is $(python_version python3): $get_python"
fi
"$found" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    fail "Python's venv module is needed, $found comes without: get it with \"sudo apt install $(basename "$found")-venv\" (Debian, Ubuntu), or name another Python with \"make PYTHON=/path/to/python3.11\""

java=java # the one that Spark will start
[ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
version=$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
major=${version%%[!0-9]*}
[ "${version#1.}" = "$version" ] || major=8 # 1.8.0_392 and older count from 1
[ -n "$version" ] || fail "Java 17 or newer is needed, none found at \"$java\": $get_java"
[ "${major:-0}" -ge 17 ] || fail "Java 17 or newer is needed, \"$java\" is $version: $get_java"

command -v "$found"
