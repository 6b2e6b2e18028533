//! The entities that rules name, and the scope of a rule: which requests it can meet at all.
//!
//! A scope is read once; whether it fits is a comparison of names, without Cedar.

use cedar_policy::{
    ActionConstraint, Entities, Entity, EntityId, EntityTypeName, EntityUid, Policy,
    PrincipalConstraint, ResourceConstraint,
};

use super::request::{RuleAction, RuleTarget, Subject};

/// The kinds of entities.
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

    /// Its name in rules.
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

/// One entity.
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

/// What the principal or resource of a rule must be. An entity of no known kind is never met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Constraint {
    Any,
    Equal(Option<Named>),
    In(Option<Named>),
    Is(Option<EntityKind>),
    IsIn(Option<EntityKind>, Option<Named>),
}

/// An entity as it is compared: itself, and what it is in.
struct Placed<'a, I: Iterator<Item = &'a str> + Clone> {
    kind: EntityKind,
    id: &'a str,
    parents: EntityKind,
    within: I,
}

impl Constraint {
    fn fits<'a, I: Iterator<Item = &'a str> + Clone>(&self, entity: &Placed<'a, I>) -> bool {
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

/// Which requests a rule can meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    principal: Constraint,
    /// `None` for all.
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

    /// Whether the rule's condition is asked at all.
    pub(super) fn fits(
        &self,
        subject: Subject<'_>,
        action: RuleAction,
        target: RuleTarget<'_>,
    ) -> bool {
        if self.actions.as_ref().is_some_and(|actions| !actions.contains(&action)) {
            return false;
        }
        let agent = Placed {
            kind: EntityKind::Agent,
            id: subject.id,
            parents: EntityKind::Group,
            within: subject.groups.iter().map(|group| &**group),
        };
        self.principal.fits(&agent) && fits_target(&self.resource, target)
    }

    /// Whether some tool of the server may be met.
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

    /// Whether a tool can be met.
    pub(super) fn fits_tool(&self, target: RuleTarget<'_>) -> bool {
        fits_target(&self.resource, target)
    }
}

fn fits_target(constraint: &Constraint, target: RuleTarget<'_>) -> bool {
    let id = resource_id(target);
    constraint.fits(&Placed {
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

/// The three names of a request, and what they are in, for Cedar.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    pub(super) principal: EntityUid,
    pub(super) action: EntityUid,
    pub(super) resource: EntityUid,
    pub(super) entities: Entities,
}

impl Cast {
    /// `None` if Cedar does not take a name, which no text is known to be.
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
            entities: Entities::from_entities(entities, None).ok()?,
        })
    }
}
