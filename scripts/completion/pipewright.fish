# Completion of the three programs in fish. It asks the program that was typed, each time: there is no list that could be an old one.
# Installed under each program's name, by which fish finds it.
function __pipewright_commands
    set -l words (commandline -opc)
    $words[1] --help 2>/dev/null | sed -n '/^Commands/,/^$/s/^  \([a-z-]*\)  *\(.*\)/\1\t\2/p'
end
function __pipewright_options
    set -l words (commandline -opc)
    $words[1] (string match -v -- '-*' $words[2]) --help-all 2>/dev/null | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p'
end
set -l program (basename (status filename) .fish)
complete -c $program -f -n 'test (count (commandline -opc)) -eq 1' -a '(__pipewright_commands)'
complete -c $program -f -n 'string match -q -- "-*" (commandline -ct)' -a '(__pipewright_options)'
