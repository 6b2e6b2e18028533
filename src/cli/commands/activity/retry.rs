//! Going on with a stream that broke off or was cut off: how often, and after how long.

use std::time::Duration;

use crate::cli::error::CommandError;

/// How often a stream is taken up again before something has come of it.
const MAX_TRIES: u32 = 5;
/// How long before it is.
const WAIT: Duration = Duration::from_secs(1);

/// The tries since something came.
#[derive(Debug, Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// Something has come.
    pub(super) fn came(&mut self) {
        self.0 = 0;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    ///
    /// `why` the last one failed, when there have been enough.
    pub(super) async fn next(&mut self, why: CommandError) -> Result<(), CommandError> {
        if self.0 == MAX_TRIES {
            return Err(why);
        }
        self.0 += 1;
        tokio::time::sleep(WAIT).await;
        Ok(())
    }
}
