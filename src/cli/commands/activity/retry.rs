//! Resuming a stream that broke off or was cut off: how often, and after how long.

use std::time::Duration;

use crate::cli::error::CommandError;

/// Attempts to resume a stream without anything coming of it.
const MAX_RETRIES: u32 = 5;
/// How long before each.
const WAIT: Duration = Duration::from_secs(1);

/// The attempts since something came.
#[derive(Debug, Default)]
pub(super) struct Retries(u32);

impl Retries {
    /// Something has come: counting begins anew.
    pub(super) fn came(&mut self) {
        self.0 = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    ///
    /// `why` the last one failed, when there have been enough.
    pub(super) async fn next(&mut self, why: CommandError) -> Result<(), CommandError> {
        if self.0 == MAX_RETRIES {
            return Err(why);
        }
        self.0 += 1;
        tokio::time::sleep(WAIT).await;
        Ok(())
    }
}
