//! The runtimes: one thread's own for each worker, and a small one with threads for everything beside calls.

use std::io;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime, Runtime};

/// Threads for what blocks, beside one for each core, on which large answers are judged: logins and
/// sets of tools on disk, compiling. Hundreds of servers at once would be hundreds of heaps, and no
/// faster.
const BLOCKING_THREADS: usize = 8;

/// Worker threads: one for each core.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A runtime for one thread, whose tasks need not be `Send`.
///
/// # Errors
///
/// When the system gives no event queue.
pub fn local_runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// The control plane's runtime.
///
/// # Errors
///
/// When the system gives no thread or no event queue.
pub(super) fn control() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(BLOCKING_THREADS + cores())
        .thread_name("control")
        .enable_all()
        .build()
}
