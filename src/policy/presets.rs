//! The ready rules (`policy.presets`): off until the operator names them.
//!
//! `no-exfiltration`: once a session has seen private data *and* what a stranger may have written, nothing goes out to
//! a tool that reaches beyond its server, unless a person agrees. What the session has seen, `session_facts` keeps.

use serde::Deserialize;

use super::access::Access;
use super::denial::{Denial, LiftedBy, RuleDenial};
use super::request::AdmissionRequest;
use crate::intent::Sensitivity;
use crate::tool::World;

/// A ready rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Preset {
    /// Nothing goes out to the open world after private data and open-world content.
    #[serde(rename = "no-exfiltration")]
    NoExfiltration,
}

impl Preset {
    /// Its name in the config, and the id of its refusals.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::NoExfiltration => "no-exfiltration",
        }
    }
}

/// What a refused agent is told.
const MESSAGE: &str = "this session has seen private data and content from the open world, so that nothing may go out to \
                       tools that reach beyond their server without approval";

/// Asks the rules that are on.
///
/// # Errors
/// The first that refuses.
pub(super) fn check(request: &AdmissionRequest<'_>, presets: &[Preset]) -> Result<(), Denial> {
    for preset in presets {
        match preset {
            Preset::NoExfiltration => no_exfiltration(request)?,
        }
    }
    Ok(())
}

fn no_exfiltration(request: &AdmissionRequest<'_>) -> Result<(), Denial> {
    let Access::Tool(call) = &request.access else { return Ok(()) };
    let session = &request.session;
    // What the call itself is said to carry counts as well.
    let stated = request.intent.and_then(|intent| intent.sensitivity());
    let seen = Sensitivity::higher(session.max_sensitivity, stated);
    let goes_out = call.tool().exposure.world == World::Open;
    if !(goes_out && session.open_world_seen && seen == Some(Sensitivity::Private)) {
        return Ok(());
    }
    let rule: Box<str> = Preset::NoExfiltration.id().into();
    Err(Denial::Rule(RuleDenial {
        access: format!("Tool '{}'", call.tool().name).into(),
        rules: vec![rule.clone()],
        rule,
        message: MESSAGE.into(),
        lifted_by: LiftedBy::Approval,
    }))
}
