//! The `mcpproxy` binary: sets the allocator and runs the command line.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mcpproxy_cli::run()
}
