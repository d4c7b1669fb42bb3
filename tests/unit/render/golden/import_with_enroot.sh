#!/bin/bash
#SBATCH --job-name=import-a+torch+1
#SBATCH --account=proj
#SBATCH --partition=luna
#SBATCH --mem=0
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=1:00:00
#SBATCH --no-requeue
#SBATCH --output=/runs/20261121-092041-bd57/import/log.txt
# Import docker://registry.example#a/torch:1 to one file on the shared file system, which jobs on selene use.
# This script is complete: `sbatch` it, or `bash` it on a machine that reaches the registry. It needs enroot, which
# reads credentials from its own file.
# shellcheck disable=SC2016  # nothing in single quotes is expanded
set -euo pipefail

uri='docker://registry.example#a/torch:1'
folder=/runs/20261121-092041-bd57/import
staging=/scratch/images
used=$staging/a+torch+1.sqsh
# A unique folder on the file system of the image, so that a complete file is only renamed.
own=$staging/.a+torch+1.${SLURM_JOB_ID:-none}.$$.$(hostname)

# At any end, remove partial files and write the record of the end.
finish() {
  local exit_code=$? group
  trap '' TERM INT HUP
  for group in $(jobs -p); do  # including one of a command that has just started
    kill -- "-$group" 2>/dev/null || :
  done
  wait
  rm -rf -- "$own" || :
  printf '%s\n' 'event=end' "exit_code=$exit_code" "at=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "host=$(hostname)" \
    "scheduler_id=${SLURM_JOB_ID:-none}" "pid=$$" >"$folder/.record.$$"
  mv -f -- "$folder/.record.$$" "$folder/end"
}
mkdir -p -- "$folder"
rm -f -- "$folder/end"
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 129' HUP

# Run a command in its own process group, so that a signal ends all its processes at once.
to_its_end() {
  set -m
  "$@" </dev/null &
  set +m
  wait $!
}

if [ -e "$used" ] && [ ! -L "$used" ]; then
  printf '%s\n' "$used is a file that no import has made: move it away first" >&2
  exit 2
fi
[ -d "$staging" ] || mkdir -- "$staging" || [ -d "$staging" ]
rm -rf -- "$own"
# Remove what killed imports of this image left: folders of this user that have not changed for an hour, the longest time
# of an import as a job. An import on a login node has no limit, so its process must have ended.
for left in "$staging"/.a+torch+1.*; do
  [[ ${left#"$staging"/.a+torch+1.} =~ ^(none|[0-9]+)\.([0-9]+)\.([^.]*[^.0-9].*)$ ]] || continue
  if [ "${BASH_REMATCH[1]}" = none ] &&
    { [ "${BASH_REMATCH[3]}" != "$(hostname)" ] || kill -0 "${BASH_REMATCH[2]}" 2>/dev/null; }; then
    continue
  fi
  if [ -O "$left" ] && [ -z "$(find "$left" -mmin -60 -print -quit)" ]; then
    rm -rf -- "$left"
  fi
done
mkdir -- "$own"
image=$own/image.sqsh file='' digest='' digest_of=''

# Slurm passes the login node's XDG_RUNTIME_DIR, which the node may not have. enroot creates a folder in it.
if [ ! -w "${XDG_RUNTIME_DIR:-}" ]; then
  export XDG_RUNTIME_DIR=$own
fi
version="enroot $(enroot version)"
source=$uri
# enroot has this command since 4.0. A tag may move between two requests; the image of a digest cannot change.
if enroot digest --help >/dev/null 2>&1; then
  digest=$(enroot digest --arch x86_64 -- "$uri") || digest=
  if [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
    digest_of=manifest file=a+torch+1@sha256-${digest:7:12}.sqsh source='docker://registry.example#a/torch'@$digest
  else
    echo 'the registry gave no digest of the manifest; that of the file takes its place' >&2
  fi
fi
if [ -z "$file" ] || [ ! -e "$staging/$file" ]; then
  to_its_end enroot import --arch x86_64 --output "$image" -- "$source"
fi
if [ -z "$file" ]; then
  digest=sha256:$(sha256sum <"$image")
  digest=${digest%% *} digest_of=file
  file=a+torch+1@sha256-${digest:7:12}.sqsh
fi

fresh=
if [ -e "$image" ]; then
  # The file of an earlier import of this image stays, because a job may have it open.
  mv -n -- "$image" "$staging/$file" || [ -e "$staging/$file" ]
  [ -e "$image" ] || fresh=yes
fi
quoted_uri='"docker://registry.example#a/torch:1"' json=$staging/$file.json
if [ -z "$fresh" ] && grep -qsF -- "\"$digest\"" "$json" && grep -qs '^  "uri": ' "$json"; then
  # The same image was imported before, perhaps under another name, which stays first.
  if ! grep -qsF -- "$quoted_uri" "$json"; then
    others=$(sed -n 's/^  "other_uris": \[\(.*\)\],$/\1, /p' "$json")
    {
      printf '{\n%s\n' "$(grep -m 1 '^  "uri": ' "$json")"
      printf '  "other_uris": [%s%s],\n' "$others" "$quoted_uri"
      sed '1d; /^  "uri": /d; /^  "other_uris": /d' "$json"
    } >"$own/json"
  fi
else
  text() { printf '"%s"' "$(printf '%s' "$1" | tr -d '[:cntrl:]' | sed 's/["\\]/\\&/g')"; }
  job_id=null
  [ -z "${SLURM_JOB_ID:-}" ] || job_id=$(text "$SLURM_JOB_ID")
  {
    printf '{\n  "uri": %s,\n' "$quoted_uri"
    printf '  "digest": "%s",\n  "digest_of": "%s",\n' "$digest" "$digest_of"
    printf '  "imported": "%s",\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    printf '  "user": %s,\n  "host": %s,\n' "$(text "$(id -un || id -u)")" "$(text "$(hostname)")"
    printf '  "bytes": %s,\n' "$(stat -c %s -- "$staging/$file")"
    printf '  "tool": %s,\n  "job_id": %s\n}\n' "$(text "$version")" "$job_id"
  } >"$own/json"
fi
[ ! -e "$own/json" ] || mv -f -- "$own/json" "$json"
# Users who may read the folder may read its files, whatever the umask of this shell is.
readable=$(printf %o $((8#$(stat -c %a -- "$staging") & 8#44 | 8#600)))
for shared in "$staging/$file" "$json"; do
  [ ! -O "$shared" ] || chmod -- "$readable" "$shared"
done
# A running job keeps its open file. A job that starts gets the old or the new image, never a partial one.
ln -s -- "$file" "$own/link"
mv -fT -- "$own/link" "$used"
printf '%s\n' "$used is $file, sha256 of its $digest_of ${digest#sha256:}"
