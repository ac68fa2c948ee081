#!/bin/sh
# Gate the tutorial's fix: two commits in a repository of its own, the second decodes each image once. Some minutes.
set -e
script=$(cd "$(dirname "$0")" && pwd)/train.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
git init -q -b main
git config user.name example && git config user.email example@example.org
cp "$script" train.py
echo store > .gitignore
git add . && git commit -qm "train"
sed -i 's/"--decode-once", action="store_true"/"--decode-once", action="store_false"/' train.py
git commit -qam "decode each image once"
export TRAINYARD_STORE="$folder/store"
trainyard gate run --base HEAD~1 -- python train.py --epochs 3
