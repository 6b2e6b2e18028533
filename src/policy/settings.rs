//! What the config decides of admission.

use std::sync::Arc;

use super::limits::CallLimits;
use super::rules::RuleSet;
use crate::intent;

/// What [`admit`](super::admit) decides by, beside the request.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Config section `intent_declaration`.
    pub intent: intent::Settings,
    /// Config section `policy`: the rules in force; `None` where there are none, and everything is allowed.
    pub rules: Option<Arc<RuleSet>>,
    /// Config section `limits`, and those of servers.
    pub limits: Arc<CallLimits>,
}
