#!/bin/sh
# Writes constraints-hashes.txt: what a deployment installs, in the versions of constraints.txt, with the hash of each
# file that the index has of them; and deploy/executor-hashes.txt: the part of it that executors need. Needs uv (pip
# install uv). Run it after a change of constraints.txt.

set -eu
cd "$(dirname "$0")/.."
made=$(mktemp)
trap 'rm -f "$made" "$made.in"' EXIT

compile() { # INPUTS: writes what they need to the file
    uv pip compile "$@" --constraint constraints.txt --python-version 3.11 \
        --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file "$made"
}

echo 'hatchling>=1.27,<2' >"$made.in"    # builds our own package, so it must be known, too
compile pyproject.toml "$made.in" --extra all
{
    echo '# The versions of constraints.txt that a deployment needs (the extra "all"), with the hashes of their files:'
    echo '#'
    echo '#     pip install --require-hashes --requirement constraints-hashes.txt'
    echo '#     pip install --no-deps --no-build-isolation .       # in a checkout'
    echo '#'
    echo '# scripts/hashes.sh makes this file.'
    cat "$made"
} >constraints-hashes.txt

executors='pyarrow numpy mmh3 protobuf fsspec obstore s3fs'
printf '%s\n' $executors >"$made.in"
compile "$made.in"
{
    echo '# What tasks import, and what that needs, with hashes: executor.Dockerfile. scripts/hashes.sh makes this file.'
    cat "$made"
} >deploy/executor-hashes.txt
