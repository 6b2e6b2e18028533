//! The `mcpproxy` binary: sets the allocator and hands over to the command line.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mcpproxy::cli::run()
}
