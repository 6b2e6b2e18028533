//! The operator's rules, asked about a request or about what is to be listed.
//!
//! What rules are and how they add up is in [`rules`](super::rules); here is what of a request they are shown.

use std::sync::Arc;

use super::access::{Access, Reference};
use super::denial::{RuleDenial, Warning};
use super::principal::{Principal, Scope};
use super::request::AdmissionRequest;
use super::rules::{RuleAction, RuleRequest, RuleSet, RuleTarget, RulesMode, Ruling, Subject};
use super::scope;
use super::settings::Settings;
use crate::tool::{Tool, ToolName};

/// What the rules have to say to a request that goes out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// The rules that permit it; empty where the default did.
    pub(super) rules: Vec<Box<str>>,
    /// That it would be refused, were they not only watching.
    pub(super) warning: Option<Warning>,
}

/// Asks the rules.
///
/// # Errors
/// [`RuleDenial`] where they refuse it, and are not only watching.
pub(super) fn check(request: &AdmissionRequest<'_>, rules: &RuleSet) -> Result<Heard, RuleDenial> {
    let (action, target) = meant(&request.access);
    let asked = RuleRequest {
        subject: subject(request.principal),
        action,
        target,
        arguments: request.arguments,
        sensitivity: request.intent.and_then(|intent| intent.sensitivity()),
        reason: request.intent.and_then(|intent| intent.reason()).unwrap_or_default(),
        client: request.client,
        session: request.session,
        now: request.now,
    };
    match (rules.decide(&asked), rules.options().mode) {
        (Ruling::Permitted(rules), _) => Ok(Heard { rules, warning: None }),
        (Ruling::Refused(denial), RulesMode::Enforce) => Err(denial),
        (Ruling::Refused(denial), RulesMode::Shadow) => {
            Ok(Heard { rules: Vec::new(), warning: Some(Warning::Shadow(denial)) })
        }
    }
}

/// The principal as rules know it.
fn subject(principal: &Principal) -> Subject<'_> {
    Subject { id: principal.id(), groups: principal.groups() }
}

fn meant(access: &Access) -> (RuleAction, RuleTarget<'_>) {
    let resource = |server, uri| (RuleAction::ReadResource, RuleTarget::Resource { server, uri });
    let prompt = |server, name| (RuleAction::GetPrompt, RuleTarget::Prompt { server, name });
    match access {
        Access::Tool(call) => (call.operation().into(), RuleTarget::Tool(call.tool())),
        Access::Resource { server, uri, request: _ }
        | Access::Completion { server, of: Reference::Resource(uri) } => resource(server, uri),
        Access::Prompt { server, name }
        | Access::Completion { server, of: Reference::Prompt(name) } => prompt(server, name),
    }
}

/// What of the lists a principal is shown: what it may ask for, as far as that can be told beforehand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visibility<'a> {
    /// What the principal's token was made for; `None` where that bounds nothing.
    scope: Option<&'a Scope>,
    /// Who looks, and the rules; `None` where everything is shown.
    ruled: Option<(Subject<'a>, &'a RuleSet)>,
}

/// What `principal` is shown under these settings.
#[must_use]
pub fn visible<'a>(principal: &'a Principal, settings: &'a Settings) -> Visibility<'a> {
    Visibility {
        scope: scope::of(principal),
        ruled: settings.rules.as_deref().map(|rules| (subject(principal), rules)),
    }
}

impl Visibility<'_> {
    /// Whether everything is shown, so that nothing need be asked.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.scope.is_none() && self.ruled.is_none()
    }

    /// Whether rules are asked.
    #[must_use]
    pub fn is_ruled(&self) -> bool {
        self.ruled.is_some()
    }

    /// Whether the tool is shown.
    #[must_use]
    pub fn tool(&self, tool: &Arc<Tool>) -> bool {
        self.in_scope(tool) && self.ruled.is_none_or(|(who, rules)| rules.shows_tool(who, tool))
    }

    /// The same, asked of tools of which there may be very many. Rules take their time: they are asked about the first
    /// `most` that come to them, and what comes after those is not shown.
    pub fn first_tools(self, most: usize) -> impl FnMut(&Arc<Tool>) -> bool {
        let mut left = most;
        move |tool| {
            self.in_scope(tool)
                && self.ruled.is_none_or(|(who, rules)| {
                    let asked = left > 0;
                    left = left.saturating_sub(1);
                    asked && rules.shows_tool(who, tool)
                })
        }
    }

    /// Whether the principal's token is for the tool; the rules are not asked.
    #[must_use]
    pub fn in_scope(&self, tool: &Tool) -> bool {
        self.scope.is_none_or(|scope| scope.shows_tool(tool))
    }

    /// Whether the principal's token is for a tool of that name, if there is one: else nothing is said of its server.
    #[must_use]
    pub fn may_name(&self, name: &ToolName) -> bool {
        self.scope.is_none_or(|scope| scope.has_tool(name))
    }

    /// Whether the resource, or template of resources, is shown.
    #[must_use]
    pub fn resource(&self, server: &str, uri: &str) -> bool {
        self.scope.is_none_or(|scope| scope.has_offers(server))
            && self.ruled.is_none_or(|(who, rules)| rules.shows_resource(who, server, uri))
    }

    /// Whether the prompt is shown.
    #[must_use]
    pub fn prompt(&self, server: &str, name: &str) -> bool {
        self.scope.is_none_or(|scope| scope.has_offers(server))
            && self.ruled.is_none_or(|(who, rules)| rules.shows_prompt(who, server, name))
    }
}
