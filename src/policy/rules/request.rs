//! Requests in the form that rules read: subject, action, target, the Cedar entities and context made of them, and the
//! scopes that select rules.

use std::sync::Arc;
use std::time::SystemTime;

use cedar_policy::{
    ActionConstraint, Context, Entities, Entity, EntityId, EntityTypeName, EntityUid, Policy,
    PrincipalConstraint, Request, ResourceConstraint, RestrictedExpression,
};

use super::arguments::{self, ArgumentMembers, Unmappable, in_one_line};
use super::needs::{InputMembers, RuleNeeds};
use crate::intent::{Operation, Sensitivity};
use crate::session_facts::SessionFacts;
use crate::tool::{Approval, SideEffect, Tool, World};

/// Subject: `Agent::"ID"` in Cedar; a member of `Group`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// Principal id, as in records.
    pub id: &'a str,
    pub groups: &'a [Box<str>],
}

/// Action: `Action::"WORD"` in Cedar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// A call that only reads.
    Read,
    /// A call that creates or updates.
    Write,
    /// A call that deletes or changes permanently.
    Destructive,
    /// Appearing in lists and search results.
    List,
    /// Reading, subscribing to or completing a resource.
    ReadResource,
    /// Getting or completing a prompt.
    GetPrompt,
}

impl RuleAction {
    pub(crate) const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Destructive,
        Self::List,
        Self::ReadResource,
        Self::GetPrompt,
    ];

    /// Name in rules.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Destructive => "destructive",
            Self::List => "list",
            Self::ReadResource => "read_resource",
            Self::GetPrompt => "get_prompt",
        }
    }

    /// Actions that a call of the tool can have, from least to most severe. The operation recommended for the tool is
    /// the least severe.
    pub(super) fn calls_of(tool: &Tool) -> impl Iterator<Item = Self> {
        let min = Operation::recommended(tool.capability);
        Operation::ALL.into_iter().filter(move |operation| *operation >= min).map(Self::from)
    }

    /// Whether the action is a tool call.
    pub(super) const fn is_call(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Destructive)
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == word)
    }
}

impl RuleRequest<'_> {
    /// The request with its effective action. For a tool call, this is the greater of the stated operation and the one
    /// recommended for the tool, so that an agent cannot avoid a rule by stating less than the tool does.
    pub fn with_effective_action(self) -> Self {
        let stated = match self.action {
            RuleAction::Read => Operation::Read,
            RuleAction::Write => Operation::Write,
            RuleAction::Destructive => Operation::Destructive,
            RuleAction::List | RuleAction::ReadResource | RuleAction::GetPrompt => return self,
        };
        let RuleTarget::Tool(tool) = self.target else { return self };
        let action = stated.max(Operation::recommended(tool.capability)).into();
        Self { action, ..self }
    }
}

impl From<Operation> for RuleAction {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Read => Self::Read,
            Operation::Write => Self::Write,
            Operation::Destructive => Self::Destructive,
        }
    }
}

/// Target of a request.
#[derive(Clone, Copy, Debug)]
pub enum RuleTarget<'a> {
    Tool(&'a Arc<Tool>),
    /// A tool of which only the name is known: rules that read its capability err.
    NamedTool {
        server: &'a str,
        tool: &'a str,
    },
    /// A resource or resource template.
    Resource {
        server: &'a str,
        /// The server's own URI.
        uri: &'a str,
    },
    Prompt {
        server: &'a str,
        name: &'a str,
    },
}

impl<'a> RuleTarget<'a> {
    pub(crate) fn server(&self) -> &'a str {
        match self {
            Self::Tool(tool) => &tool.name.server,
            Self::NamedTool { server, .. }
            | Self::Resource { server, .. }
            | Self::Prompt { server, .. } => server,
        }
    }

    /// Name or URI used by the server.
    pub(crate) fn own(&self) -> &'a str {
        match self {
            Self::Tool(tool) => &tool.name.tool,
            Self::NamedTool { tool: own, .. }
            | Self::Resource { uri: own, .. }
            | Self::Prompt { name: own, .. } => own,
        }
    }

    /// Value of `context.carries_out`: the exposure of a tool, otherwise `asked`; `None` for an unknown tool.
    pub(super) fn carries_out(&self, asked: bool) -> Option<bool> {
        match self {
            Self::Tool(tool) => Some(tool.exposure.world == World::Open),
            Self::NamedTool { .. } => None,
            Self::Resource { .. } | Self::Prompt { .. } => Some(asked),
        }
    }

    /// Kind and name for denials.
    pub fn shown(&self) -> String {
        let kind = match self {
            Self::Tool(_) | Self::NamedTool { .. } => "Tool",
            Self::Resource { .. } => "Resource",
            Self::Prompt { .. } => "Prompt",
        };
        format!("{kind} '{}:{}'", self.server(), self.own())
    }
}

/// Input of a decision.
#[derive(Clone, Copy, Debug)]
pub struct RuleRequest<'a> {
    pub subject: Subject<'a>,
    /// For a tool call, the stated operation; rules see the effective one.
    pub action: RuleAction,
    pub target: RuleTarget<'a>,
    /// Arguments: one raw JSON object without duplicate keys.
    pub arguments: &'a [u8],
    /// Stated sensitivity.
    pub sensitivity: Option<Sensitivity>,
    /// Stated reason, or empty.
    pub reason: &'a str,
    /// Client name as stated, or empty.
    pub client: &'a str,
    /// Facts of the session joined with those of the principal.
    pub session: SessionFacts,
    /// Whether a request for a resource or prompt sends data chosen by the client to a server of the open world. For a
    /// tool call, the tool's exposure decides this.
    pub carries_out: bool,
    /// Wall-clock time.
    pub now: SystemTime,
}

/// Entity types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntityKind {
    Agent,
    Group,
    Server,
    Tool,
    Resource,
    Prompt,
}

impl EntityKind {
    const ALL: [Self; 6] =
        [Self::Agent, Self::Group, Self::Server, Self::Tool, Self::Resource, Self::Prompt];

    /// Name in rules.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "Agent",
            Self::Group => "Group",
            Self::Server => "Server",
            Self::Tool => "Tool",
            Self::Resource => "Resource",
            Self::Prompt => "Prompt",
        }
    }

    pub(super) fn of(name: &EntityTypeName) -> Option<Self> {
        let name = name.to_string();
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) kind: EntityKind,
    pub(super) id: Box<str>,
}

impl Named {
    pub(super) fn of(uid: &EntityUid) -> Option<Self> {
        let id: &str = uid.id().as_ref();
        Some(Self { kind: EntityKind::of(uid.type_name())?, id: id.into() })
    }
}

/// Constraint on the principal or resource of a rule. An unknown entity type never matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Constraint {
    Any,
    Equal(Option<Named>),
    In(Option<Named>),
    Is(Option<EntityKind>),
    IsIn(Option<EntityKind>, Option<Named>),
}

struct EntityWithParents<'a, I: Iterator<Item = &'a str> + Clone> {
    kind: EntityKind,
    id: &'a str,
    parents: EntityKind,
    within: I,
}

impl Constraint {
    fn fits<'a, I: Iterator<Item = &'a str> + Clone>(
        &self,
        entity: &EntityWithParents<'a, I>,
    ) -> bool {
        let equal =
            |to: &Option<Named>| to.as_ref().is_some_and(|to| is(to, entity.kind, entity.id));
        let within = |of: &Option<Named>| {
            equal(of)
                || of.as_ref().is_some_and(|of| {
                    entity.within.clone().any(|parent| is(of, entity.parents, parent))
                })
        };
        match self {
            Self::Any => true,
            Self::Equal(to) => equal(to),
            Self::In(of) => within(of),
            Self::Is(kind) => *kind == Some(entity.kind),
            Self::IsIn(kind, of) => *kind == Some(entity.kind) && within(of),
        }
    }
}

fn is(named: &Named, kind: EntityKind, id: &str) -> bool {
    named.kind == kind && *named.id == *id
}

/// Scope of a rule: the requests to which it applies. Matched by names, without Cedar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    principal: Constraint,
    /// Actions to which the rule applies; `None` for all.
    actions: Option<Vec<RuleAction>>,
    resource: Constraint,
}

impl Scope {
    pub(super) fn of(policy: &Policy) -> Self {
        let principal = match policy.principal_constraint() {
            PrincipalConstraint::Any => Constraint::Any,
            PrincipalConstraint::Eq(uid) => Constraint::Equal(Named::of(&uid)),
            PrincipalConstraint::In(uid) => Constraint::In(Named::of(&uid)),
            PrincipalConstraint::Is(kind) => Constraint::Is(EntityKind::of(&kind)),
            PrincipalConstraint::IsIn(kind, uid) => {
                Constraint::IsIn(EntityKind::of(&kind), Named::of(&uid))
            }
        };
        let resource = match policy.resource_constraint() {
            ResourceConstraint::Any => Constraint::Any,
            ResourceConstraint::Eq(uid) => Constraint::Equal(Named::of(&uid)),
            ResourceConstraint::In(uid) => Constraint::In(Named::of(&uid)),
            ResourceConstraint::Is(kind) => Constraint::Is(EntityKind::of(&kind)),
            ResourceConstraint::IsIn(kind, uid) => {
                Constraint::IsIn(EntityKind::of(&kind), Named::of(&uid))
            }
        };
        let actions = |uids: &[EntityUid]| {
            let word = |uid: &EntityUid| RuleAction::from_word(uid.id().as_ref());
            Some(uids.iter().filter_map(word).collect())
        };
        let actions = match policy.action_constraint() {
            ActionConstraint::Any => None,
            ActionConstraint::Eq(uid) => actions(&[uid]),
            ActionConstraint::In(uids) => actions(&uids),
        };
        Self { principal, actions, resource }
    }

    /// Restricts the rule to tool calls; returns false and changes nothing if it names no call action.
    pub(super) fn restrict_to_calls(&mut self) -> bool {
        let stated = self.actions.as_deref().unwrap_or(&RuleAction::ALL);
        let calls: Vec<_> = stated.iter().copied().filter(|action| action.is_call()).collect();
        let names_calls = !calls.is_empty();
        if names_calls {
            self.actions = Some(calls);
        }
        names_calls
    }

    /// Whether the rule applies, so that its condition is evaluated.
    pub(super) fn fits(
        &self,
        subject: Subject<'_>,
        action: RuleAction,
        target: RuleTarget<'_>,
    ) -> bool {
        self.fits_use(subject, action) && fits_target(&self.resource, target)
    }

    /// Whether the rule applies to the subject and action, regardless of the target.
    pub(super) fn fits_use(&self, subject: Subject<'_>, action: RuleAction) -> bool {
        if self.actions.as_ref().is_some_and(|actions| !actions.contains(&action)) {
            return false;
        }
        let agent = EntityWithParents {
            kind: EntityKind::Agent,
            id: subject.id,
            parents: EntityKind::Group,
            within: subject.groups.iter().map(|group| &**group),
        };
        self.principal.fits(&agent)
    }

    /// Whether the rule may apply to some tool of the server.
    pub(super) fn may_fit_server(&self, server: &str) -> bool {
        let of_server = |named: &Option<Named>| {
            named.as_ref().is_some_and(|named| match named.kind {
                EntityKind::Server => *named.id == *server,
                EntityKind::Tool => {
                    named.id.strip_prefix(server).is_some_and(|rest| rest.starts_with(':'))
                }
                EntityKind::Agent
                | EntityKind::Group
                | EntityKind::Resource
                | EntityKind::Prompt => false,
            })
        };
        match &self.resource {
            Constraint::Any => true,
            Constraint::Equal(named) | Constraint::In(named) => of_server(named),
            Constraint::Is(kind) => *kind == Some(EntityKind::Tool),
            Constraint::IsIn(kind, named) => *kind == Some(EntityKind::Tool) && of_server(named),
        }
    }

    /// Whether the rule may apply to a tool.
    pub(super) fn fits_tool(&self, target: RuleTarget<'_>) -> bool {
        fits_target(&self.resource, target)
    }
}

fn fits_target(constraint: &Constraint, target: RuleTarget<'_>) -> bool {
    let id = resource_id(target);
    constraint.fits(&EntityWithParents {
        kind: kind(target),
        id: &id,
        parents: EntityKind::Server,
        within: std::iter::once(target.server()),
    })
}

fn kind(target: RuleTarget<'_>) -> EntityKind {
    match target {
        RuleTarget::Tool(_) | RuleTarget::NamedTool { .. } => EntityKind::Tool,
        RuleTarget::Resource { .. } => EntityKind::Resource,
        RuleTarget::Prompt { .. } => EntityKind::Prompt,
    }
}

fn resource_id(target: RuleTarget<'_>) -> String {
    format!("{}:{}", target.server(), target.own())
}

/// Cedar entities of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestEntities {
    pub(super) principal: EntityUid,
    pub(super) action: EntityUid,
    pub(super) resource: EntityUid,
    /// The three entities with their parents.
    pub(super) hierarchy: Entities,
}

impl RequestEntities {
    /// Creates the entities; `None` if Cedar rejects a name, which no known text causes.
    pub(super) fn of(
        subject: Subject<'_>,
        action: RuleAction,
        target: RuleTarget<'_>,
    ) -> Option<Self> {
        let uid = |kind: &str, id: &str| {
            let kind: EntityTypeName = kind.parse().ok()?;
            Some(EntityUid::from_type_name_and_id(kind, EntityId::new(id)))
        };
        let named = |kind: EntityKind, id: &str| uid(kind.as_str(), id);
        let principal = named(EntityKind::Agent, subject.id)?;
        let resource = named(kind(target), &resource_id(target))?;
        let groups = subject.groups.iter().map(|group| named(EntityKind::Group, group));
        let groups = groups.collect::<Option<_>>()?;
        let server = [named(EntityKind::Server, target.server())?].into();
        let entities = [
            Entity::new_no_attrs(principal.clone(), groups),
            Entity::new_no_attrs(resource.clone(), server),
        ];
        Some(Self {
            principal,
            action: uid("Action", action.as_str())?,
            resource,
            hierarchy: Entities::from_entities(entities, None).ok()?,
        })
    }
}

/// Value of an unstated sensitivity.
pub(super) const UNKNOWN: &str = "unknown";

/// Maps the arguments that `needs` reads; `None` if it reads none.
pub(super) fn arguments<'a>(
    asked: &RuleRequest<'a>,
    needs: &RuleNeeds,
    types: &InputMembers,
) -> Result<Option<ArgumentMembers<'a>>, Unmappable> {
    let wanted = needs.args.as_ref();
    let mapped = |wanted| arguments::mapped(asked.arguments, wanted, &needs.names, types);
    wanted.map(mapped).transpose()
}

/// Cedar request that contains only the context that `needs` reads, and these arguments.
pub(super) fn request(
    asked: &RuleRequest<'_>,
    entities: &RequestEntities,
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
    if needs.carries_out
        && let Some(carries_out) = asked.target.carries_out(asked.carries_out)
    {
        put("carries_out", RestrictedExpression::new_bool(carries_out));
    }
    if needs.client {
        put("client", string(asked.client));
    }
    if needs.now {
        let now = jiff::Timestamp::try_from(asked.now).map_err(|error| refused(&error))?;
        put("now", RestrictedExpression::new_datetime(format!("{now:.3}")));
    }
    let context = Context::from_pairs(pairs).map_err(|error| refused(&error))?;
    let RequestEntities { principal, action, resource, hierarchy: _ } = entities;
    Request::new(principal.clone(), action.clone(), resource.clone(), context, None)
        .map_err(|error| refused(&error))
}

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

pub(super) fn word(sensitivity: Sensitivity) -> &'static str {
    match sensitivity {
        Sensitivity::Public => "public",
        Sensitivity::Internal => "internal",
        Sensitivity::Private => "private",
        Sensitivity::Unknown => UNKNOWN,
    }
}
