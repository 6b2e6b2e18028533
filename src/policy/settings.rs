//! What the config decides of admission.

use crate::intent;

/// What [`admit`](super::admit) decides by, beside the request.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Config section `intent_declaration`.
    pub intent: intent::Settings,
    /// Tells one set of rules from another: an approval counts under the rules that it was asked under. 0 without
    /// rules.
    pub rules_version: u64,
}
