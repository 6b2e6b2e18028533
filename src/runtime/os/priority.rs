//! Thread priorities.
//!
//! Priorities are only lowered: raising them again requires a privilege that this process does not have.

/// Niceness of a background thread relative to the threads that serve calls: if both compete for a core, calls get nine
/// tenths of it.
#[cfg(target_os = "linux")]
const BACKGROUND_NICE: i32 = 10;

/// Lowers the calling thread's priority below that of calls. On systems without per-thread priorities, nothing is
/// changed, because a lower priority would apply to the whole process.
pub fn lower() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(BACKGROUND_NICE) {
        tracing::debug!(%error, "a background thread keeps its priority");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn lowered_priority_affects_only_the_calling_thread() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let lowered = std::thread::spawn(move || {
            lower();
            nice()
        });
        assert!(lowered.join().unwrap() > before || before >= BACKGROUND_NICE);
        assert_eq!(nice(), before);
    }
}
