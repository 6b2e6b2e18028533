//! Redaction (ACT-8): what must not reach the disk is taken out before anything is written. Pure.
//!
//! The text may be JSON, JSON that was cut anywhere, JSON inside strings of JSON, or no JSON at all,
//! so it is never parsed: redaction looks for quoted strings, for keys and what follows them, and for
//! the shapes of well-known credentials. What it is unsure of it takes out. The fields that filters
//! read (names, ids) are not passed to it.
//!
//! `prefilter` passes most texts at once; `scrub` reads the others, string by string, and `plain` what
//! stands between and in them, word by word; `table` lists keys and credentials.

mod credentials;
mod json_context;
mod json_fragment;
mod keys;
mod options;
mod plain;
mod prefilter;
mod scrub;
pub mod table;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use self::keys::Keys;
use self::plain::ScrubInput;
use self::prefilter::{Prefilter, open_authority};
use self::scrub::Scrubber;
use super::record::PayloadRef;

/// What stands where a secret stood.
pub const REDACTED: &str = crate::secrets::MASKED;

/// Takes secrets out of payloads and texts.
#[derive(Clone, Debug)]
pub struct Redactor {
    keys: Keys,
    /// Passes most texts without a secret; `None` where the configured keys do not allow it.
    prefilter: Option<Prefilter>,
}

impl Default for Redactor {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Redactor {
    /// A redactor for the built-in keys and shapes, and for `extra` keys.
    #[must_use]
    pub fn new(extra: &[String]) -> Self {
        let keys = Keys::new(extra);
        let prefilter = Prefilter::new(&keys);
        Self { keys, prefilter }
    }

    /// The payload without secrets, and its length before it was cut. Of a payload that was cut the
    /// length is always more than is returned; of any other it is what is returned.
    #[must_use]
    pub fn payload<'a>(&self, payload: PayloadRef<'a>) -> (Cow<'a, [u8]>, u64) {
        let bytes = self.bytes(payload.bytes, payload.is_cut());
        let total = match payload.is_cut() {
            true => payload.total.max(bytes.len() as u64 + 1),
            false => bytes.len() as u64,
        };
        (bytes, total)
    }

    /// The text without secrets, of which the end may have been `cut` off.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str, cut: bool) -> Cow<'a, str> {
        match self.bytes(text.as_bytes(), cut) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    fn bytes<'a>(&self, bytes: &'a [u8], cut: bool) -> Cow<'a, [u8]> {
        let is_clean = |prefilter: &Prefilter| prefilter.is_clean(bytes, cut, &self.keys);
        if bytes.is_empty() || self.prefilter.as_ref().is_some_and(is_clean) {
            return match open_authority(bytes).filter(|_| cut).and_then(|at| bytes.get(..at)) {
                Some(before) => Cow::Owned([before, REDACTED.as_bytes()].concat()),
                None => Cow::Borrowed(bytes),
            };
        }
        let mut out = Vec::with_capacity(bytes.len() + 64);
        Scrubber::new(&self.keys).scrub(&ScrubInput { bytes, cut, depth: 0 }, &mut out);
        if out == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(out) }
    }
}
