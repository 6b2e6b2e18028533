//! What is known of a request from principal, tool and action alone: the rules that it can meet, those that hold already,
//! and those that have to be asked with the rest.

use std::sync::Arc;

use cedar_policy::{Effect, EvalResult, Request, eval_expression};
use serde_json::Value;

use super::arguments::ArgumentMembers;
use super::context;
use super::entities::Cast;
use super::input_types::{self, Completeness, InputMembers};
use super::needs::RuleNeeds;
use super::parsed::ParsedRule;
use super::problem::in_one_line;
use super::request::{RuleRequest, RuleTarget};

/// What a condition came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    Yes,
    No,
    /// It cannot be told, for this reason.
    Error(String),
}

/// The rules that hold, and what went wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Holding {
    pub(super) forbids: Vec<Arc<ParsedRule>>,
    pub(super) permits: Vec<Arc<ParsedRule>>,
    /// The first rule that could not be evaluated, and why.
    pub(super) error: Option<(Arc<ParsedRule>, String)>,
}

impl Holding {
    pub(super) fn note(&mut self, rule: &Arc<ParsedRule>, held: Truth) {
        match (held, rule.effect) {
            (Truth::Yes, Effect::Forbid) => self.forbids.push(Arc::clone(rule)),
            (Truth::Yes, Effect::Permit) => self.permits.push(Arc::clone(rule)),
            (Truth::No, _) => {}
            (Truth::Error(why), _) => {
                self.error.get_or_insert_with(|| (Arc::clone(rule), why));
            }
        }
    }
}

/// What the rules that a request meets look at, beside principal, tool and action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LooksAt {
    /// The arguments.
    pub arguments: bool,
    /// What went on in the session before.
    pub session: bool,
    /// The tool's capability.
    pub capability: bool,
}

/// What principal, tool and action lead to.
#[derive(Debug)]
pub(super) struct Plan {
    /// What holds whatever else the request says.
    pub(super) fixed: Holding,
    /// Rules that look at the rest of the request.
    pub(super) open: Vec<Arc<ParsedRule>>,
    /// What they look at together.
    needs: RuleNeeds,
    /// What all rules that are met look at.
    pub(super) looks_at: LooksAt,
    types: InputMembers,
    /// `None` where no rule is open, or Cedar does not take the names: then open rules err.
    cast: Option<Cast>,
}

impl Plan {
    /// Of the rules in `all` those that `asked` can meet.
    pub(super) fn of(all: &[Arc<ParsedRule>], asked: &RuleRequest<'_>) -> Self {
        let cast = Cast::of(asked.subject, asked.action, asked.target);
        let fits =
            |rule: &&Arc<ParsedRule>| rule.scope.fits(asked.subject, asked.action, asked.target);
        let mut plan = Self {
            fixed: Holding::default(),
            open: Vec::new(),
            needs: RuleNeeds::default(),
            looks_at: LooksAt::default(),
            types: InputMembers::new(),
            cast,
        };
        for rule in all.iter().filter(fits) {
            plan.looks_at.arguments |= rule.needs.args.is_some();
            plan.looks_at.session |= rule.needs.session;
            plan.looks_at.capability |= rule.needs.capability;
            if rule.needs.looks_at_request() {
                plan.needs.add(&rule.needs);
                plan.open.push(Arc::clone(rule));
            } else {
                plan.fixed.note(rule, alone(rule, asked, plan.cast.as_ref()));
            }
        }
        plan.types = types(&plan.needs, asked.target);
        if plan.open.is_empty() {
            plan.cast = None;
        }
        plan
    }

    /// What holds of all rules for this request.
    pub(super) fn holding(&self, asked: &RuleRequest<'_>) -> Holding {
        let mut holding = self.fixed.clone();
        if self.open.is_empty() {
            return holding;
        }
        let members = match context::arguments(asked, &self.needs, &self.types) {
            Ok(members) => members,
            Err(unmappable) => {
                let asks = |rule: &&Arc<ParsedRule>| {
                    rule.needs.args.as_ref().is_some_and(|args| args.covers(&unmappable.path))
                };
                if let Some(rule) = self.open.iter().find(asks).or(self.open.first()) {
                    holding.note(rule, Truth::Error(unmappable.to_string()));
                }
                return holding;
            }
        };
        // Made where a rule needs Cedar itself: most do not.
        let mut request = None;
        for rule in &self.open {
            let truth = match rule.holds_plainly(asked, members.as_ref()) {
                Some(true) => Truth::Yes,
                Some(false) => Truth::No,
                None => {
                    let make =
                        || Asked::new(asked, self.cast.as_ref(), &self.needs, members.as_ref());
                    request.get_or_insert_with(make).holds(rule)
                }
            };
            holding.note(rule, truth);
        }
        holding
    }
}

/// A request as Cedar is asked about it, or why it cannot be.
struct Asked<'c>(Result<(Request, &'c Cast), String>);

impl<'c> Asked<'c> {
    fn new(
        asked: &RuleRequest<'_>,
        cast: Option<&'c Cast>,
        needs: &RuleNeeds,
        members: Option<&ArgumentMembers<'_>>,
    ) -> Self {
        let cast = cast.ok_or_else(|| "the names of the request cannot be compared".to_owned());
        Self(cast.and_then(|cast| Ok((context::request(asked, cast, needs, members)?, cast))))
    }

    fn holds(&self, rule: &ParsedRule) -> Truth {
        let Some(condition) = &rule.condition else { return Truth::Yes };
        let (request, cast) = match &self.0 {
            Ok(asked) => asked,
            Err(why) => return Truth::Error(why.clone()),
        };
        match eval_expression(request, &cast.entities, condition) {
            Ok(EvalResult::Bool(true)) => Truth::Yes,
            Ok(EvalResult::Bool(false)) => Truth::No,
            Ok(_) => Truth::Error("its condition is neither true nor false".to_owned()),
            Err(error) => Truth::Error(in_one_line(&error.to_string())),
        }
    }
}

/// What one rule comes to, by itself, as Cedar says.
pub(super) fn alone(rule: &ParsedRule, asked: &RuleRequest<'_>, cast: Option<&Cast>) -> Truth {
    let types = types(&rule.needs, asked.target);
    match context::arguments(asked, &rule.needs, &types) {
        Ok(members) => Asked::new(asked, cast, &rule.needs, members.as_ref()).holds(rule),
        Err(unmappable) => Truth::Error(unmappable.to_string()),
    }
}

/// The types that the tool's input schema gives to what is looked at.
fn types(needs: &RuleNeeds, target: RuleTarget<'_>) -> InputMembers {
    let (Some(wanted), RuleTarget::Tool(tool)) = (&needs.args, target) else {
        return InputMembers::new();
    };
    let schema: Value = serde_json::from_str(tool.input_schema.get()).unwrap_or_default();
    input_types::members(wanted, &[&schema], Completeness::All)
}
