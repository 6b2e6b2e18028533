//! Processes with a mark: an environment variable set when they were started.
//!
//! A process passes its environment on to all of its children, including those that leave its process group and session. A mark therefore
//! finds all descendants of a child without special privileges. It does not find a process that clears its environment or changes its user,
//! nor any process on a system without `/proc`.

use std::fs;

use nix::unistd::Pid;

/// Name of the variable. Its value is a list of words, one for each process that set a mark, oldest first.
pub const VARIABLE: &str = "MCPPROXY_CHILD_OF";

/// Value that marks a child with `mark`, in addition to this process's own marks.
pub fn value(mark: &str) -> String {
    match std::env::var(VARIABLE) {
        Ok(ours) if !ours.is_empty() => format!("{ours} {mark}"),
        Ok(_) | Err(_) => mark.to_owned(),
    }
}

/// Finds every process with a mark that starts with `mark`. Reads one file per process of the system.
pub fn find(mark: &str) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| is_marked(*id, mark)).map(Pid::from_raw).collect()
}

/// Whether the process has the mark; false for a process that has ended, even if it has not been reaped yet.
fn is_marked(id: i32, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    let marked = environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
    let mut words = marked.flat_map(|value| value.split(|byte| *byte == b' '));
    words.any(|word| word.starts_with(mark.as_bytes()))
}
