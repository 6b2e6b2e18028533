//! Background task with a stop signal.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running task. Dropping it does not wait for the task, which then detects that its stop channel is closed.
#[derive(Debug)]
pub struct BackgroundTask {
    task: JoinHandle<()>,
    ends: watch::Sender<bool>,
}

impl BackgroundTask {
    /// Starts the future that `run` returns. The receiver changes to true when the task must end.
    pub fn start<F>(runtime: &Handle, run: impl FnOnce(watch::Receiver<bool>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (ends, ending) = watch::channel(false);
        Self { task: runtime.spawn(run(ending)), ends }
    }

    /// Asks the task to end and waits up to `limit`, then aborts it. Returns whether it ended by itself.
    pub async fn end_within(mut self, limit: Duration) -> bool {
        self.ends.send_replace(true);
        let ended = tokio::time::timeout(limit, &mut self.task).await.is_ok();
        if !ended {
            self.task.abort();
            let _ = self.task.await;
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn end_within_awaits_a_cooperative_task_and_aborts_a_stuck_one() {
        let runtime = Handle::current();
        let over = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&over);
        let cooperative = BackgroundTask::start(&runtime, |mut ending| async move {
            let _ = ending.wait_for(|ends| *ends).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            done.store(true, Ordering::Relaxed);
        });
        assert!(cooperative.end_within(Duration::from_secs(60)).await);
        assert!(over.load(Ordering::Relaxed));
        let held = Arc::clone(&over);
        let stuck = BackgroundTask::start(&runtime, |_| async move {
            let _held = held;
            std::future::pending().await
        });
        assert!(!stuck.end_within(Duration::from_millis(5)).await);
        assert_eq!(Arc::strong_count(&over), 1, "its resources are released");
    }
}
