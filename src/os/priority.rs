//! How urgent a thread's work is beside that of the others.
//!
//! Only ever lowered: to raise it again needs a right that this process does not have.

/// How much less urgent than a call's the work of a background thread is, in steps of `nice`: where
/// both want a core, calls get nine parts of ten.
#[cfg(target_os = "linux")]
const BACKGROUND_NICE: i32 = 10;

/// Makes what the calling thread does from now on less urgent than calls. Where threads of one
/// process have no priorities of their own nothing changes: it would be the whole process's.
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
    fn a_thread_is_lowered_alone() {
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
