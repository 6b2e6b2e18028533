//! Where logs go: stderr, as text for people or JSON for machines. stdout belongs to results.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::upstream::oauth::SECRETIVE;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging at `level`. A second start in one process changes nothing.
pub(super) fn start(level: &str, shape: Shape) {
    // What libraries have to say is of interest only when it is bad, or when asked for.
    let libraries = if matches!(level, "debug" | "trace") { "info" } else { "warn" };
    // The codes and tokens of logins are nobody's business, at any level.
    let filter = EnvFilter::new(format!("{libraries},mcpproxy={level},{SECRETIVE}=warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // It fails only if a subscriber is set already, and then that one is meant.
    let _ = match shape {
        Shape::Text => builder.try_init(),
        Shape::Json => builder.json().try_init(),
    };
}
