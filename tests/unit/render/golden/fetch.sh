#!/bin/bash
# Code and files of: repro programs fetch megatron-2021 --cluster selene
# Usage: bash fetch.sh [FOLDER]. With FOLDER, all places are below it. It needs git, curl, sha256sum and flock.
# Each item is written beside its place, checked, and moved there. What is there stays as it is. Repeat the script after
# an interruption: it continues. Exit code 0: all is in its place; 2: an item has a fault; 3: a connection is missing.
# If the cluster has no internet:
#   bash fetch.sh copy      # on a machine with internet; then copy the folder `copy` to the cluster
#   cp -rn copy/. /         # on the cluster; then the command of the first line checks the copies and makes the data
# shellcheck disable=SC2016,SC2329  # text in single quotes is literal; `item` calls functions by name
set -euo pipefail
root=${1:-}
fault='' lost=''
unset "${!GIT_DIR@}"
export GIT_TERMINAL_PROMPT=0 LC_ALL=C

# End an item: exit code, where, what, and a hint.
fail() {
  printf '%s: %s%s\n' "$2" "$3" "${4:+. Hint: $4}" >&2
  exit "$1"
}

unwritable() {
  local hint='name a folder that you can write to'
  [[ $1 != *[Nn]'o space left'* && $1 != *quota* ]] || hint='free space, then repeat the command'
  fail 2 "${place%/*}" "cannot be written ($1)" "$hint"
}

for tool in git curl sha256sum flock; do
  command -v "$tool" >/dev/null || fail 2 "$tool" "$tool is not on this machine" 'load or install it, then repeat the command'
done

# Fetch one item. If it fails, the others are fetched anyway.
item() {
  set +e
  (
    set -e
    "$@"
  )
  case $? in
    0) ;;
    3) lost=3 ;;
    *) fault=2 ;;
  esac
  set -e
}

there() {
  [ -e "$place" ] && { [ ! -d "$place" ] || [ -n "$(ls -A -- "$place")" ]; } && echo "$field: there already, $place"
}

# Exclude other users and commands until the item ends. On a file system without locks it has no effect.
lock() {
  local reason
  lock_file=${place%/*}/.${place##*/}.lock
  reason=$({ mkdir -p -- "${place%/*}" && : >>"$lock_file"; } 2>&1) || unwritable "${reason##*: }"
  until [ "$lock_file" -ef /dev/fd/9 ]; do # the command that had the lock has removed its file
    exec 9>>"$lock_file"
    flock --nonblock --conflict-exit-code 10 9 || [ $? -ne 10 ] ||
      fail 2 "$place" 'another command fetches this' 'wait until it has ended'
  done
  trap 'rm -f -- "$lock_file"' EXIT
}

# Fetch a file: field, place, address, checksum, size in bytes.
fetch_file() {
  local field=$1 place=$root$2 url=$3 sha256=$4 bytes=$5 kept sum
  ! there || return 0
  lock
  ! there || return 0
  part=${place%/*}/.${place##*/}.part
  kept=$(stat -c %s -- "$part" 2>/dev/null || echo 0)
  [ "$kept" -ge "$bytes" ] || download
  sum=$(sha256sum <"$part")
  if [ "$kept" -gt 0 ] && [ "${sum%% *}" != "$sha256" ]; then # a part of another file
    rm -- "$part"
    download
    sum=$(sha256sum <"$part")
  fi
  if [ "${sum%% *}" != "$sha256" ]; then
    rm -- "$part"
    fail 2 "$url" "the checksum of the download is ${sum%% *}, and must be $sha256" \
      'nothing is kept; a proxy may have replaced the file, or the source has changed'
  fi
  mv -T -- "$part" "$place"
  echo "$field: fetched, $place"
}

# Download into the part, after the bytes that it has.
download() {
  local answer status=0
  answer=$(curl --fail --location --silent --show-error --connect-timeout 60 --speed-limit 1 --speed-time 60 \
    -C - --output "$part" -- "$url" 2>&1) || status=$?
  case $status in
    0) return ;;
    18) fail 3 "$url" "the connection ended after $(stat -c %s -- "$part") of $bytes bytes" \
      'repeat the command; it continues where it stopped' ;;
    23) unwritable 'no space left on device, or a quota is used up' ;;
    22) answer=${answer##*error: } ;;
    33) answer=416 ;; # the server has no ranges
    *) fail 3 "$url" "no connection (${answer#curl: })" 'without internet on this machine, --offline prints a script for another one' ;;
  esac
  case $answer in
    416*)
      rm -- "$part"
      download
      ;;
    5* | 429*) fail 3 "$url" "the server answers $answer" 'repeat the command later' ;;
    *) fail 2 "$url" "the server answers $answer" "put a file with sha256 $sha256 at $place, then repeat the command" ;;
  esac
}

# Run git in the part of a checkout. A connection that brings fewer than 1,000 bytes/s for 60 s counts as lost.
git_in_part() {
  git -c http.lowSpeedLimit=1000 -c http.lowSpeedTime=60 -c core.hooksPath=/dev/null -C "$part" "$@" 2>&1
}

must_git() {
  reason=$(git_in_part "$@") || git_failed
}

is_about() {
  printf '%s\n' "$reason" | grep -Eiq "$1"
}

git_failed() {
  local what
  what="git: $(printf '%s\n' "$reason" | grep -m 1 -E '^(fatal|error):' || printf '%s\n' "$reason" | tail -n 1)"
  ! is_about 'no space left|disk quota exceeded' || fail 2 "$url" "$what" 'free space, then repeat the command'
  ! is_about "could not resolve|couldn't connect|failed to connect|connection (refused|reset|timed out|was reset)|timed out|\
network is unreachable|no route to host|unable to look up|early eof|the remote end hung up|returned error: 5|\
operation too slow|unexpected disconnect|recv failure|could not read from remote repository" ||
    fail 3 "$url" "$what" 'without internet on this machine, --offline prints a script for another one'
  fail 2 "$url" "$what"
}

# Fetch a checkout: field, place, repository, and a commit, branch or tag.
fetch_checkout() {
  local field=$1 place=$root$2 url=$3 commit=$4 revision=FETCH_HEAD reason shallow=''
  ! there || return 0
  lock
  ! there || return 0
  part=${place%/*}/.${place##*/}.part
  reason=$(mkdir -p -- "$part" 2>&1) || unwritable "${reason##*: }"
  rm -f -- "$part"/.git/*.lock # left by a killed git
  must_git init --quiet
  git_in_part remote get-url origin >/dev/null || must_git remote add origin "$url"
  if ! reason=$(git_in_part fetch --quiet --no-tags --depth 1 origin "$commit"); then
    is_about "not our ref|unadvertised object|couldn't find remote ref|no such remote ref" || git_failed
    # The server offers no single commits, or the hash is abbreviated.
    [ ! -e "$part/.git/shallow" ] || shallow=yes
    must_git fetch --quiet --tags ${shallow:+--unshallow} origin '+refs/heads/*:refs/remotes/origin/*'
    [ "$(git_in_part cat-file -t "$commit")" = commit ] ||
      fail 2 "$url" "the repository has no commit, branch or tag $commit"
    revision=$commit
  fi
  # By this name a later check knows the branch or tag.
  [[ $commit =~ ^[0-9a-f]{40}$ ]] || must_git update-ref "refs/remotes/origin/$commit" "$revision^{commit}"
  must_git checkout --quiet --force --detach "$revision"
  mv -T -- "$part" "$place"
  echo "$field: fetched, $place"
}

item fetch_checkout checkout '/shared/it'"'"'s checkout $HOME' \
  https://github.com/NVIDIA/Megatron-LM 6985e58938d40ad91ac07b0fddcfad8132e1447e
item fetch_file vocab_file '/shared/it'"'"'s vocab_file $HOME' \
  https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 1042301
item fetch_file merge_file '/shared/it'"'"'s merge_file $HOME' \
  https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 456318
exit "${fault:-${lost:-0}}"
