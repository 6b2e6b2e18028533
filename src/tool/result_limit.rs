//! How long a tool's result may be before an agent gets a part of it (config `result_limit`): the bounds of what can be
//! configured.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// Least `bytes` but 0: what stands in the place of a longer result takes nearly as much.
pub const MIN_LIMIT_BYTES: u64 = 4096;
/// `keep`, unless the config says otherwise.
pub const DEFAULT_KEEP: Duration = Duration::from_secs(15 * 60);
/// Longest `keep`.
const MAX_KEEP: Duration = Duration::from_secs(24 * 3600);

/// When a result is kept back, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultLimit {
    /// Most bytes of a `result` that goes to an agent whole; 0: any.
    pub bytes: u64,
    /// How long what is longer can be read by its handle.
    pub keep: Duration,
}

impl Default for ResultLimit {
    fn default() -> Self {
        Self { bytes: 0, keep: DEFAULT_KEEP }
    }
}

impl ResultLimit {
    /// Itself, if there is a limit.
    #[must_use]
    pub fn limits(self) -> Option<Self> {
        (self.bytes > 0).then_some(self)
    }
}

/// Reads `bytes`: 0, or at least [`MIN_LIMIT_BYTES`].
///
/// # Errors
/// Anything else.
pub fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    match (1..MIN_LIMIT_BYTES).contains(&bytes) {
        true => Err(de::Error::custom(format_args!(
            "must be 0, for no limit, or at least {MIN_LIMIT_BYTES}, is {bytes}"
        ))),
        false => Ok(bytes),
    }
}

/// Reads `keep`: a duration above zero, at most 24 hours.
///
/// # Errors
/// Anything else.
pub fn keep<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let duration = text.parse::<jiff::SignedDuration>().ok();
    let duration = duration.and_then(|duration| Duration::try_from(duration).ok());
    match duration.filter(|duration| !duration.is_zero()) {
        Some(duration) if duration <= MAX_KEEP => Ok(duration),
        Some(_) => Err(de::Error::custom("must be 24h at most")),
        None => Err(de::Error::custom(format_args!(
            "'{text}' is no duration: write it like \"30s\" or \"15m\""
        ))),
    }
}
