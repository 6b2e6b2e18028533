//! Why a request comes to what it does: every rule that it meets, what it came to, and what it saw.

use std::sync::Arc;

use cedar_policy::{Effect, EvalResult};

use super::context;
use super::entities::Cast;
use super::input_types::InputMembers;
use super::needs::RuleNeeds;
use super::parsed::ParsedRule;
use super::plan::{Truth, alone};
use super::request::RuleRequest;
use super::ruling::Ruling;

/// Most characters of a value that is shown.
const MAX_SHOWN_CHARS: usize = 200;

/// Why a request comes to what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// What it comes to.
    pub ruling: Ruling,
    /// The rules whose scope it fits, in the order of the files.
    pub rules: Vec<Saw>,
}

/// One rule, and what it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saw {
    /// Its name.
    pub rule: Box<str>,
    /// The file that it stands in.
    pub file: Arc<str>,
    /// Where it begins, from 1.
    pub line: usize,
    /// `permit` or `forbid`.
    pub effect: &'static str,
    /// What its condition came to.
    pub outcome: RuleOutcome,
    /// What it looks at, and the value of each in Cedar's spelling; `None` for what is not there.
    pub values: Vec<(String, Option<String>)>,
}

/// What a condition came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOutcome {
    /// It holds: the rule has its say.
    Holds,
    /// It does not.
    Fails,
    /// It cannot be told, for this reason: the request is refused.
    Errs(String),
}

pub(super) fn explain(
    all: &[Arc<ParsedRule>],
    ruling: Ruling,
    asked: &RuleRequest<'_>,
) -> Explained {
    let cast = Cast::of(asked.subject, asked.action, asked.target);
    let met = all.iter().filter(|rule| rule.scope.fits(asked.subject, asked.action, asked.target));
    let saw = met.map(|rule| Saw {
        rule: rule.name.clone(),
        file: Arc::clone(&rule.file),
        line: rule.line,
        effect: match rule.effect {
            Effect::Permit => "permit",
            Effect::Forbid => "forbid",
        },
        outcome: match alone(rule, asked, cast.as_ref()) {
            Truth::Yes => RuleOutcome::Holds,
            Truth::No => RuleOutcome::Fails,
            Truth::Error(why) => RuleOutcome::Errs(why),
        },
        values: values(&rule.needs, asked, cast.as_ref()),
    });
    Explained { ruling, rules: saw.collect() }
}

/// The values of the paths that a rule names.
fn values(
    needs: &RuleNeeds,
    asked: &RuleRequest<'_>,
    cast: Option<&Cast>,
) -> Vec<(String, Option<String>)> {
    let request = cast.and_then(|cast| {
        let members = context::arguments(asked, needs, &InputMembers::new()).ok()?;
        context::request(asked, cast, needs, members.as_ref()).ok()
    });
    let context = request.as_ref().and_then(cedar_policy::Request::context);
    let value = |path: &[String]| {
        let (first, rest) = path.split_first()?;
        let mut value = context?.get(first)?;
        for name in rest {
            value = match value {
                EvalResult::Record(record) => record.get(name)?.clone(),
                EvalResult::Bool(_)
                | EvalResult::Long(_)
                | EvalResult::String(_)
                | EvalResult::EntityUid(_)
                | EvalResult::Set(_)
                | EvalResult::ExtensionValue(_) => return None,
            };
        }
        let shown = value.to_string();
        Some(shown.chars().take(MAX_SHOWN_CHARS).collect())
    };
    // A record whose members are named as well is told by them.
    let is_inner = |path: &[String]| {
        needs.paths.iter().any(|other| other.len() > path.len() && other.starts_with(path))
    };
    let told = needs.paths.iter().filter(|path| !path.is_empty() && !is_inner(path));
    told.map(|path| (format!("context.{}", path.join(".")), value(path))).collect()
}
