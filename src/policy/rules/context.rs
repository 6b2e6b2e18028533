//! What a condition is evaluated on: the parts of Cedar's `context` that the rules in question look at.

use cedar_policy::{Context, Request, RestrictedExpression};

use super::arguments::{self, ArgumentMembers, Unmappable};
use super::entities::Cast;
use super::input_types::InputMembers;
use super::needs::RuleNeeds;
use super::problem::in_one_line;
use super::request::{RuleRequest, RuleTarget};
use crate::intent::Sensitivity;
use crate::tool::{Approval, SideEffect, Tool, World};

/// What a sensitivity that was not stated is called.
pub(super) const UNKNOWN: &str = "unknown";

/// The arguments that `needs` names; `None` if it names none.
///
/// # Errors
/// They cannot be shown to a rule.
pub(super) fn arguments<'a>(
    asked: &RuleRequest<'a>,
    needs: &RuleNeeds,
    types: &InputMembers,
) -> Result<Option<ArgumentMembers<'a>>, Unmappable> {
    let wanted = needs.args.as_ref();
    wanted.map(|wanted| arguments::mapped(asked.arguments, wanted, types)).transpose()
}

/// The request as Cedar takes it, with what `needs` names and no more, and these arguments.
pub(super) fn request(
    asked: &RuleRequest<'_>,
    cast: &Cast,
    needs: &RuleNeeds,
    members: Option<&ArgumentMembers<'_>>,
) -> Result<Request, String> {
    let refused = |error: &dyn std::fmt::Display| in_one_line(&error.to_string());
    let mut pairs = Vec::new();
    let string = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let mut put = |name: &str, value| pairs.push((name.to_owned(), value));
    let record = |pairs: Vec<(String, RestrictedExpression)>| {
        RestrictedExpression::new_record(pairs).map_err(|error| refused(&error))
    };
    if let Some(members) = members {
        put("args", arguments::record(members).map_err(|error| refused(&error))?);
    }
    if needs.intent {
        let sensitivity = asked.sensitivity.map_or(UNKNOWN, word);
        put(
            "intent",
            record(vec![
                ("operation_type".to_owned(), string(asked.action.as_str())),
                ("data_sensitivity".to_owned(), string(sensitivity)),
                ("reason".to_owned(), string(asked.reason)),
            ])?,
        );
    }
    if needs.capability
        && let RuleTarget::Tool(tool) = asked.target
    {
        put("capability", record(capability(tool))?);
    }
    if needs.session {
        let session = asked.session;
        let calls = i64::try_from(session.calls).unwrap_or(i64::MAX);
        put(
            "session",
            record(vec![
                (
                    "max_sensitivity".to_owned(),
                    string(session.max_sensitivity.map_or(UNKNOWN, word)),
                ),
                (
                    "open_world_seen".to_owned(),
                    RestrictedExpression::new_bool(session.open_world_seen),
                ),
                ("calls".to_owned(), RestrictedExpression::new_long(calls)),
            ])?,
        );
    }
    if needs.client {
        put("client", string(asked.client));
    }
    if needs.now {
        let now = jiff::Timestamp::try_from(asked.now).map_err(|error| refused(&error))?;
        put("now", RestrictedExpression::new_datetime(format!("{now:.3}")));
    }
    let context = Context::from_pairs(pairs).map_err(|error| refused(&error))?;
    let Cast { principal, action, resource, entities: _ } = cast;
    Request::new(principal.clone(), action.clone(), resource.clone(), context, None)
        .map_err(|error| refused(&error))
}

/// The tool's capability.
fn capability(tool: &Tool) -> Vec<(String, RestrictedExpression)> {
    let side_effect = match tool.capability.side_effect {
        SideEffect::None => "none",
        SideEffect::Read => "read",
        SideEffect::Write => "write",
        SideEffect::Destructive => "destructive",
    };
    let approval = match tool.capability.approval {
        Approval::Auto => "auto",
        Approval::Suggest => "suggest",
        Approval::Required => "required",
    };
    let string = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let bool = RestrictedExpression::new_bool;
    vec![
        ("side_effect".to_owned(), string(side_effect)),
        ("parallel_safe".to_owned(), bool(tool.capability.parallel_safe)),
        ("approval".to_owned(), string(approval)),
        ("idempotent".to_owned(), bool(tool.capability.idempotent)),
        ("open_world".to_owned(), bool(tool.exposure.world == World::Open)),
    ]
}

/// The word of a sensitivity.
pub(super) fn word(sensitivity: Sensitivity) -> &'static str {
    match sensitivity {
        Sensitivity::Public => "public",
        Sensitivity::Internal => "internal",
        Sensitivity::Private => "private",
        Sensitivity::Unknown => UNKNOWN,
    }
}
