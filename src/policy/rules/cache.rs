//! Plans that were made, kept on each thread: no two threads share one, or wait for each other.
//!
//! A plan is of one principal, tool and action, and of one set of rules. A tool is known by its place in memory, which is
//! kept from being another's as long as the plan is: a new definition of the tool is another place.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::plan::Plan;
use super::request::{RuleAction, RuleRequest, RuleTarget, Subject};
use crate::tool::Tool;

/// Plans that one thread keeps; one more, and it forgets all of them.
pub(super) const MAX_PLANS: usize = 4096;

/// What a plan is of.
#[derive(Debug)]
struct Known {
    set: u64,
    subject: Box<str>,
    groups: Box<[Box<str>]>,
    tool: Weak<Tool>,
    action: RuleAction,
    plan: Arc<Plan>,
}

thread_local! {
    static PLANS: RefCell<HashMap<u64, Known>> = RefCell::new(HashMap::new());
}

/// The plan for a request under the rules of the set with that number; `make` makes one that is not there. Only plans
/// for tools of the catalog are kept: other names are the client's to choose.
pub(super) fn plan(set: u64, asked: &RuleRequest<'_>, make: impl FnOnce() -> Plan) -> Arc<Plan> {
    let RuleTarget::Tool(tool) = asked.target else { return Arc::new(make()) };
    let key = key(set, asked.subject, tool, asked.action);
    let found = PLANS.with_borrow(|plans| {
        let known = plans.get(&key).filter(|known| known.is(set, asked, tool))?;
        Some(Arc::clone(&known.plan))
    });
    if let Some(plan) = found {
        return plan;
    }
    let plan = Arc::new(make());
    let known = Known {
        set,
        subject: asked.subject.id.into(),
        groups: asked.subject.groups.into(),
        tool: Arc::downgrade(tool),
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
    fn is(&self, set: u64, asked: &RuleRequest<'_>, tool: &Arc<Tool>) -> bool {
        self.set == set
            && self.action == asked.action
            && self.tool.as_ptr() == Arc::as_ptr(tool)
            && *self.subject == *asked.subject.id
            && *self.groups == *asked.subject.groups
    }
}

fn key(set: u64, subject: Subject<'_>, tool: &Arc<Tool>, action: RuleAction) -> u64 {
    let place = (Arc::as_ptr(tool) as usize as u64).rotate_left(8) ^ action as u64;
    let id = xxh3_64_with_seed(subject.id.as_bytes(), place ^ set.rotate_left(32));
    subject.groups.iter().fold(id, |key, group| xxh3_64_with_seed(group.as_bytes(), key))
}
