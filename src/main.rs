//! The `mcpproxy` binary: sets the allocator and hands over to the command line.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {}
