# Sourced by the other scripts: `make_environment FOLDER REQUIREMENT...` makes a virtual environment and installs into it.

find_python() {
  local name
  for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "mlagen needs Python 3.11 or newer; set PYTHON to one" >&2
  return 1
}

make_environment() {
  local folder=$1 python started=$SECONDS
  shift
  python=$(find_python)
  [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
  echo "environment $folder is ready after $((SECONDS - started)) s"
}
