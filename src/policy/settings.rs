//! What the config decides of admission.

use crate::intent;

/// What [`admit`](super::admit) decides by, beside the request.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Config section `intent_declaration`.
    pub intent: intent::Settings,
}
