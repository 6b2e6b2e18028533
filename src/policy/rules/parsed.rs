//! One rule from its text: its name, scope, effect, condition, and what it tells the agent.

use std::fmt;
use std::sync::Arc;

use cedar_policy::ffi::DetailedError;
use cedar_policy::{Effect, Expression, Policy, PolicyId};

use super::arguments::ArgumentMembers;
use super::condition::Condition;
use super::entities::{EntityKind, Named, Scope};
use super::needs::RuleNeeds;
use super::problem::{Basis, RuleProblem, in_one_line};
use super::request::RuleRequest;
use super::split::RuleSource;
use crate::policy::denial::ApprovalDemand;

/// Most bytes of one rule.
const MAX_RULE_BYTES: usize = 64 * 1024;
/// Most characters of a name that `@id` gives.
const MAX_ID_CHARS: usize = 128;
/// Most characters of what `@message` tells.
const MAX_MESSAGE_CHARS: usize = 500;
/// What an agent's id begins with, where it is more than one word.
const PROVEN: [&str; 3] = ["token:", "jwt:", "cert:"];

/// A rule, read.
#[derive(Clone)]
pub(super) struct ParsedRule {
    /// `@id`, else `FILE:LINE`.
    pub(super) name: Box<str>,
    pub(super) file: Arc<str>,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) effect: Effect,
    /// `@message`, or empty.
    pub(super) message: Box<str>,
    pub(super) approval: ApprovalDemand,
    pub(super) scope: Scope,
    /// `None` where it has none: it holds wherever its scope fits.
    pub(super) condition: Option<Expression>,
    /// The same, where it needs no more than plain comparisons.
    plain: Option<Condition>,
    pub(super) needs: RuleNeeds,
    pub(super) policy: Policy,
    text: Box<str>,
}

impl fmt::Debug for ParsedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParsedRule").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ParsedRule {
    /// Reads one rule of `file`, whose short name stands in names that are made up.
    pub(super) fn read(
        source: &RuleSource<'_>,
        file: &Arc<str>,
        short: &str,
    ) -> Result<Self, Vec<RuleProblem>> {
        let wrong = |text: String| {
            vec![RuleProblem {
                file: Arc::clone(file),
                line: source.line,
                column: source.column,
                text,
                basis: Basis::Text,
            }]
        };
        if source.text.len() > MAX_RULE_BYTES {
            return Err(wrong(format!("the rule is longer than {MAX_RULE_BYTES} bytes")));
        }
        if !source.text.ends_with(';') {
            return Err(wrong("the rule is not finished: a ';' is missing at its end".to_owned()));
        }
        let made_up = format!("{short}:{}", source.line);
        let parsed =
            Policy::parse(Some(PolicyId::new(&made_up)), source.text).map_err(|errors| {
                let one = |error| at(source, file, &DetailedError::from(error), Basis::Text);
                errors.iter().map(one).collect::<Vec<_>>()
            })?;
        let name = parsed.annotation("id").unwrap_or(&made_up).to_owned();
        if name.is_empty()
            || name.chars().count() > MAX_ID_CHARS
            || name.chars().any(char::is_control)
        {
            let text = format!("@id must have 1 to {MAX_ID_CHARS} characters that can be shown");
            return Err(wrong(text));
        }
        let message = parsed.annotation("message").unwrap_or_default();
        if message.chars().count() > MAX_MESSAGE_CHARS {
            return Err(wrong(format!("@message has more than {MAX_MESSAGE_CHARS} characters")));
        }
        let effect = parsed.effect();
        let approval = match (parsed.annotation("requires"), effect) {
            (None, _) => ApprovalDemand::None,
            (Some("approval"), Effect::Forbid) => ApprovalDemand::Asked,
            (Some("approval"), Effect::Permit) => {
                return Err(wrong("@requires(\"approval\") belongs on a forbid".to_owned()));
            }
            (Some(other), _) => {
                return Err(wrong(format!(
                    "@requires({other:?}) is not known: only \"approval\" is"
                )));
            }
        };
        let json = parsed.to_json().map_err(|error| wrong(in_one_line(&error.to_string())))?;
        let needs = json.get("conditions").map_or(Some(RuleNeeds::default()), RuleNeeds::of);
        let needs = needs.ok_or_else(|| wrong("the condition is nested too deep".to_owned()))?;
        let plain = json.get("conditions").and_then(Condition::of);
        let condition = parsed.as_ref().non_scope_constraints().cloned().map(Expression::from);
        Ok(Self {
            name: name.into(),
            file: Arc::clone(file),
            line: source.line,
            column: source.column,
            effect,
            message: message.into(),
            approval,
            scope: Scope::of(&parsed),
            condition,
            plain,
            needs,
            policy: parsed,
            text: source.text.into(),
        })
    }

    /// Its name with the column, where `@id` gives none: two rules can begin on one line.
    pub(super) fn name_with_column(&self) -> Option<Box<str>> {
        let made_up = self.policy.annotation("id").is_none();
        made_up.then(|| format!("{}:{}", self.name, self.column).into())
    }

    /// Whether its condition holds, where that can be told without Cedar.
    pub(super) fn holds_plainly(
        &self,
        asked: &RuleRequest<'_>,
        members: Option<&ArgumentMembers<'_>>,
    ) -> Option<bool> {
        self.plain.as_ref()?.holds(asked, members)
    }

    /// All of it, as it is written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it permits where it holds.
    pub(super) fn permits(&self) -> bool {
        self.effect == Effect::Permit
    }

    /// A problem of this rule that Cedar found.
    pub(super) fn problem(&self, error: &DetailedError, basis: Basis) -> RuleProblem {
        let source = RuleSource { text: &self.text, line: self.line, column: self.column };
        at(&source, &self.file, error, basis)
    }

    /// A problem of the word that stands quoted in the rule, or of the rule as a whole.
    pub(super) fn problem_at(&self, word: &str, text: String, basis: Basis) -> RuleProblem {
        let source = RuleSource { text: &self.text, line: self.line, column: self.column };
        let (line, column) = source.place(self.text.find(&format!("{word:?}")).unwrap_or_default());
        RuleProblem { file: Arc::clone(&self.file), line, column, text, basis }
    }

    /// Agents that no principal can be.
    pub(super) fn strangers(&self) -> Vec<RuleProblem> {
        let named = self.policy.entity_literals();
        let agents = named.iter().filter_map(Named::of).filter(|it| it.kind == EntityKind::Agent);
        let unknown = agents.filter(|agent| {
            let proven = PROVEN.iter().any(|kind| agent.id.starts_with(kind));
            !(proven || matches!(&*agent.id, "anonymous" | "admin"))
        });
        let problem = |agent: Named| {
            let text = format!(
                "Agent::{:?} can never ask: agents are anonymous, admin, token:NAME, jwt:SUBJECT, \
                 cert:NAME",
                agent.id
            );
            self.problem_at(&agent.id, text, Basis::Text)
        };
        unknown.map(problem).collect()
    }
}

fn at(
    source: &RuleSource<'_>,
    file: &Arc<str>,
    error: &DetailedError,
    basis: Basis,
) -> RuleProblem {
    let (line, column) = match error.source_locations.first() {
        Some(label) => source.place(label.loc.start),
        None => (source.line, source.column),
    };
    let mut text = in_one_line(&error.message);
    if let Some(help) = &error.help {
        text = format!("{text} ({})", in_one_line(help));
    }
    RuleProblem { file: Arc::clone(file), line, column, text, basis }
}
