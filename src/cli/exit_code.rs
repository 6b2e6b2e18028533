//! The exit codes of the program.

/// Exit codes other than 0 ([contracts](crate::reference::contracts#command-line)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// The operation failed.
    Failed = 1,
    /// Bad usage.
    Usage = 2,
    /// The server cannot be reached, or the port is taken.
    Unreachable = 3,
    /// The activity store is locked or damaged.
    Store = 4,
    /// The config cannot be used.
    Config = 5,
    /// SIGINT, and SIGINT again: its end was not waited for.
    Interrupted = 130,
    /// The same with SIGTERM.
    Terminated = 143,
}
