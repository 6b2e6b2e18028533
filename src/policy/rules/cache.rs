//! Plans that were made, kept on each thread: no two threads share one, or wait for each other.
//!
//! A plan is of one principal, tool and action, and of one set of rules. A tool is known by its place in memory, which is
//! kept from being another's as long as the plan is: a new definition of the tool is another place. One that is not in the
//! catalog is known by its name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::plan::Plan;
use super::request::{RuleAction, RuleRequest, RuleTarget};
use crate::tool::Tool;

/// Plans that one thread keeps; one more, and it forgets all of them.
pub(super) const MAX_PLANS: usize = 4096;

/// What a plan is of.
#[derive(Debug)]
struct Known {
    set: u64,
    subject: Box<str>,
    groups: Box<[Box<str>]>,
    tool: PlannedTool,
    action: RuleAction,
    plan: Arc<Plan>,
}

/// The tool that a plan is for.
#[derive(Debug)]
enum PlannedTool {
    Known(Weak<Tool>),
    Named { server: Box<str>, tool: Box<str> },
}

thread_local! {
    static PLANS: RefCell<HashMap<u64, Known>> = RefCell::new(HashMap::new());
}

/// The plan for a request under the rules of the set with that number; `make` makes one that is not there. Plans for
/// resources and prompts are not kept: there is no end to their names.
pub(super) fn plan(set: u64, asked: &RuleRequest<'_>, make: impl FnOnce() -> Plan) -> Arc<Plan> {
    let key = key(set, asked);
    let found = PLANS.with_borrow(|plans| {
        let known = plans.get(&key).filter(|known| known.is(set, asked))?;
        Some(Arc::clone(&known.plan))
    });
    if let Some(plan) = found {
        return plan;
    }
    let plan = Arc::new(make());
    let tool = match asked.target {
        RuleTarget::Tool(tool) => PlannedTool::Known(Arc::downgrade(tool)),
        RuleTarget::NamedTool { server, tool } => {
            PlannedTool::Named { server: server.into(), tool: tool.into() }
        }
        RuleTarget::Resource { .. } | RuleTarget::Prompt { .. } => return plan,
    };
    let known = Known {
        set,
        subject: asked.subject.id.into(),
        groups: asked.subject.groups.into(),
        tool,
        action: asked.action,
        plan: Arc::clone(&plan),
    };
    PLANS.with_borrow_mut(|plans| {
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, known);
    });
    plan
}

impl Known {
    fn is(&self, set: u64, asked: &RuleRequest<'_>) -> bool {
        self.set == set
            && self.action == asked.action
            && self.tool.is(&asked.target)
            && *self.subject == *asked.subject.id
            && *self.groups == *asked.subject.groups
    }
}

impl PlannedTool {
    fn is(&self, target: &RuleTarget<'_>) -> bool {
        match (self, target) {
            (Self::Known(known), RuleTarget::Tool(tool)) => known.as_ptr() == Arc::as_ptr(tool),
            (Self::Named { server, tool }, RuleTarget::NamedTool { server: of, tool: named }) => {
                **server == **of && **tool == **named
            }
            (
                Self::Known(_) | Self::Named { .. },
                RuleTarget::Tool(_)
                | RuleTarget::NamedTool { .. }
                | RuleTarget::Resource { .. }
                | RuleTarget::Prompt { .. },
            ) => false,
        }
    }
}

fn key(set: u64, asked: &RuleRequest<'_>) -> u64 {
    let place = match asked.target {
        RuleTarget::Tool(tool) => (Arc::as_ptr(tool) as usize as u64).rotate_left(8),
        RuleTarget::NamedTool { server, tool } => {
            xxh3_64_with_seed(tool.as_bytes(), xxh3_64(server.as_bytes()))
        }
        // No plan is kept for these.
        RuleTarget::Resource { .. } | RuleTarget::Prompt { .. } => 0,
    };
    let subject = asked.subject;
    let id =
        xxh3_64_with_seed(subject.id.as_bytes(), place ^ asked.action as u64 ^ set.rotate_left(32));
    subject.groups.iter().fold(id, |key, group| xxh3_64_with_seed(group.as_bytes(), key))
}
