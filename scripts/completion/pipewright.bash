# Completion of the three programs in bash. It asks the program that was typed for its commands and options, each time: there is no list
# that could be an old one. Installed under each program's name, where bash-completion looks; or: source scripts/completion/pipewright.bash
_pipewright() {
  local program=${1/#\~/$HOME} word=$2 command= known=
  if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} != -* ]]; then command=${COMP_WORDS[1]}; fi
  if [[ $word == -* ]]; then
    known=$("$program" ${command:+"$command"} --help-all 2>/dev/null | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p')
  elif ((COMP_CWORD == 1)); then
    known=$("$program" --help 2>/dev/null | sed -n '/^Commands/,/^$/s/^  \([a-z-]*\) .*/\1/p')
  fi
  COMPREPLY=()
  if [[ -n $known ]]; then mapfile -t COMPREPLY < <(compgen -W "$known" -- "$word"); fi
}
# Nothing found, as for the value of an option: names of files.
complete -o default -F _pipewright pipewright-profiler pipewright-optimizer pipewright-runtime
