# Completion of mcpproxy for bash. The program itself knows which words fit.
_mcpproxy() {
    # bash takes a word apart at ':' and '=': names of tools have the one, flags the other.
    local words=() word glue= i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $i -gt 0 && ( -n $glue || $word =~ ^[:=]+$ ) && ${#words[@]} -gt 1 ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        if [[ $word =~ ^[:=]+$ ]]; then glue=1; else glue=; fi
    done
    local current=${words[${#words[@]} - 1]}
    # What stands before the part that bash replaces is not repeated.
    local before=${current%"$2"}
    local IFS=$'\n'
    COMPREPLY=($(
        MCPPROXY_COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
            mcpproxy -- "${words[@]}" 2>/dev/null
    ))
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/:] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o bashdefault -F _mcpproxy mcpproxy
