//! Processes that carry a mark: a variable in the environment that they were started with.
//!
//! A process hands its environment on to all that it starts, also to those that leave its group
//! and its session. So whoever marks a child finds everything that came of it, without rights of
//! its own. What clears its environment, or becomes another user, is not found; nor is anything
//! where the system has no `/proc`.

use std::fs;

use nix::unistd::Pid;

/// The variable. Its value is words, one for each that has marked the process, the first one first.
pub const VARIABLE: &str = "MCPPROXY_CHILD_OF";

/// The value that marks a child with `mark`, beside the marks that this process carries.
#[must_use]
pub fn value(mark: &str) -> String {
    match std::env::var(VARIABLE) {
        Ok(ours) if !ours.is_empty() => format!("{ours} {mark}"),
        Ok(_) | Err(_) => mark.to_owned(),
    }
}

/// Every process with a mark that begins so. It reads a file for each process there is.
#[must_use]
pub fn find(mark: &str) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| is_marked(*id, mark)).map(Pid::from_raw).collect()
}

/// False for what has ended, also while it waits to be reaped.
fn is_marked(id: i32, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    let marked = environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
    let mut words = marked.flat_map(|value| value.split(|byte| *byte == b' '));
    words.any(|word| word.starts_with(mark.as_bytes()))
}
