#!/bin/sh
# Finds or builds the stores that `make test-stores` runs against, in ~/.cache/trinitylake-stores: versitygw and MinIO by
# the Go toolchain (3 and 10 minutes, 20 and 50 where other work runs beside them), S3Mock, s3proxy and Keycloak by Maven,
# Azurite by npm into .azurite. What cannot be had is said aloud, and not tested.

set -u

cache="${XDG_CACHE_HOME:-$HOME/.cache}/trinitylake-stores"
mkdir -p "$cache/bin" "$cache/jars"

without() { echo "$1 IS NOT TESTED: $2" >&2; }

built() { # NAME MODULE
    [ -x "$cache/bin/$1" ] && return
    command -v go >/dev/null || { without "$1" "there is no Go toolchain, which builds it"; return; }
    echo "building $1 (minutes) ..." >&2
    GOBIN="$cache/bin" go install "$2" || without "$1" "go install $2 failed"
}

fetched() { # FILE ARTIFACT
    [ -f "$cache/jars/$1" ] && return
    command -v mvn >/dev/null || { without "$1" "there is no Maven, which fetches it"; return; }
    mvn -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy "-Dartifact=$2" "-DoutputDirectory=$cache/jars" ||
        without "$1" "Maven could not fetch $2"
}

built versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0
built minio github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
fetched s3mock-5.2.0-exec.jar com.adobe.testing:s3mock:5.2.0:jar:exec
fetched keycloak-quarkus-dist-26.7.3.zip org.keycloak:keycloak-quarkus-dist:26.7.3:zip
fetched s3proxy-4.1.0-jar-with-dependencies.jar org.gaul:s3proxy:4.1.0:jar:jar-with-dependencies
scripts/azurite.sh >/dev/null
