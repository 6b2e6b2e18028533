//! What the config decides of admission.

use std::sync::Arc;

use super::limits::CallLimits;
use super::presets::Preset;
use crate::intent;

/// What [`admit`](super::admit) decides by, beside the request.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Config section `intent_declaration`.
    pub intent: intent::Settings,
    /// The ready rules that are on (`policy.presets`).
    pub presets: Vec<Preset>,
    /// Config section `limits`, and those of servers.
    pub limits: Arc<CallLimits>,
}
