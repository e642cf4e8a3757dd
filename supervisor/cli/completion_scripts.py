"""The completion scripts of three shells, and where each looks for a user's own.

All of them hand supctl the words up to the cursor and offer the lines that it prints; a candidate that ends in `=`,
`/` or `,` goes on, so that no blank follows it.
"""

import os
from collections.abc import Mapping

BASH = r"""# bash completion for supctl
_supctl() {
    local line="${COMP_LINE:0:COMP_POINT}" words word breaks lead= candidate
    # Without -r, so that it takes the backslashes away.
    read -a words <<<"$line"
    [[ $line == *[[:space:]] && $line != *\\[[:space:]] ]] && words+=("")
    word="${words[${#words[@]} - 1]}"
    # Readline replaces only what stands behind the last of its breaks, or from an @ on.
    breaks="${COMP_WORDBREAKS//[^=:@]/}"
    [[ $breaks ]] && lead="${word%"${word##*[$breaks]}"}"
    lead="${lead%@}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ $candidate == *[=/,] ]] && compopt -o nospace 2>/dev/null
        candidate="${candidate#"$lead"}"
        if [[ $candidate == "~/"* ]]; then
            printf -v candidate '~/%q' "${candidate:2}"
        else
            printf -v candidate '%q' "$candidate"
        fi
        candidate="${candidate//\\,/,}"  # means nothing outside of braces
        COMPREPLY+=("$candidate")
    done < <("$1" completion --words -- "${words[@]:1}" 2>/dev/null)
}
complete -F _supctl supctl
"""

ZSH = r"""#compdef supctl
_supctl() {
    local -a candidates ongoing whole
    candidates=("${(@f)$("${words[1]}" completion --words -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    ongoing=(${(M)candidates:#?*[=/,]})
    whole=(${candidates:#(|*[=/,])})
    (( $#ongoing )) && compadd -S '' -- "${ongoing[@]}"
    (( $#whole )) && compadd -- "${whole[@]}"
}
if [ "$funcstack[1]" = _supctl ]; then
    _supctl "$@"
else
    compdef _supctl supctl
fi
"""

FISH = r"""# fish completion for supctl
function __supctl_words
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    supctl completion --words -- $before[2..-1] "$current" 2>/dev/null
end
complete -c supctl -f -a '(__supctl_words)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

AFTERWARDS = {
    "bash": "it is read by new shells that have bash-completion; else add to ~/.bashrc: . {0}/supctl",
    "zsh": "if new shells do not find it, add to ~/.zshrc, before compinit: fpath=({0} $fpath)",
    "fish": "new shells read it",
}


def path_for(shell: str, environ: Mapping[str, str]) -> str:
    """Where a user's own script lies: bash-completion's and fish's folders, and the usual one in zsh's fpath."""
    home = environ.get("HOME") or os.path.expanduser("~")
    data = environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
    match shell:
        case "bash":
            folder = environ.get("BASH_COMPLETION_USER_DIR") or f"{data}/bash-completion"
            return f"{folder}/completions/supctl"
        case "zsh":
            return f"{data}/zsh/site-functions/_supctl"
        case _:
            config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
            return f"{config}/fish/completions/supctl.fish"
