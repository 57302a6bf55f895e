#!/usr/bin/env bash
# Makes an environment with another framework in .cache/NAME, unless it is there already, and prints
# the path of its Python. Tests compare our files with what the framework reads and writes. It is an
# environment of its own, because frameworks ask for versions of NumPy that exclude each other. Only
# DeepSpeed has torch and NumPy from .venv.
#
#   scripts/foreign_environment.sh tensorflow
#   scripts/foreign_environment.sh chainer
#   scripts/foreign_environment.sh orbax
#   scripts/foreign_environment.sh deepspeed
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
folder=$PWD/.cache/$name
python=$folder/bin/python

install() { # OPTIONS...
  # shellcheck disable=SC2086 # several options
  "$python" -m pip install --disable-pip-version-check -q ${HOLDFAST_PIP_OPTIONS:-} "$@" >&2
}

case $name in
  tensorflow)
    # On aarch64 there is no package without the code for GPUs.
    package=tensorflow
    if [[ $(uname -m) == x86_64 ]]; then package=tensorflow-cpu; fi
    # With safetensors, with which a benchmark writes what TensorFlow has read.
    packages=("$package==2.21.0" "safetensors==0.8.0")
    ;;
  # Chainer's setup.py needs an old setuptools, and its code names that NumPy 1.24 has removed.
  chainer) packages=("numpy<1.24" "h5py==3.12.1" "chainer==7.8.1") ;;
  orbax) packages=("orbax-checkpoint==0.12.8" "safetensors==0.8.0") ;;
  # The script that DeepSpeed puts into its checkpoints needs huggingface_hub.
  deepspeed) packages=("deepspeed==0.19.8" "huggingface_hub==2.4.0") ;;
  *)
    echo "$name: is not known; expected tensorflow, chainer, orbax or deepspeed" >&2
    exit 2
    ;;
esac

if ! cmp -s <(printf '%s\n' "${packages[@]}") "$folder/installed.txt"; then
  rm -rf "$folder"
  .venv/bin/python -m venv "$folder" >&2
  if [[ $name == chainer ]]; then
    install --only-binary h5py "setuptools<70" wheel "numpy<1.24" h5py==3.12.1
    install --no-build-isolation "${packages[@]}"
  elif [[ $name == deepspeed ]]; then
    # Without isolation, because its setup.py imports torch.
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
    install "setuptools<70" wheel ninja
    DS_BUILD_OPS=0 install --no-build-isolation "${packages[@]}"
  else
    install "${packages[@]}"
  fi
  printf '%s\n' "${packages[@]}" >"$folder/installed.txt"
fi
echo "$python"
