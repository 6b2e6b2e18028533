//! Evaluator of simple conditions without Cedar: comparisons of request values with literals. Most conditions are of
//! this kind.
//!
//! A condition is compiled from its syntax tree once. Anything outside this subset, including type errors, is left to
//! Cedar, so the result always equals Cedar's. A test compares both.

use serde_json::Value;

use super::arguments::{Argument, ArgumentMembers};
use super::request::{RuleRequest, UNKNOWN, word};

/// Maximum depth of a syntax tree; deeper ones are left to Cedar.
const MAX_NESTING: usize = 64;

/// A condition within the subset.
#[derive(Clone, Debug)]
pub(super) struct Condition(Term);

/// Expression of the compiled condition.
#[derive(Clone, Debug)]
enum Term {
    Bool(bool),
    Long(i64),
    Text(Box<str>),
    /// Path below `context`, outermost name first.
    Member(Box<[Box<str>]>),
    /// `has` on an object of the arguments.
    Has(Box<[Box<str>]>, Box<str>),
    Not(Box<Term>),
    And(Box<(Term, Term)>),
    Or(Box<(Term, Term)>),
    Equal(Box<(Term, Term)>),
    Less(Box<(Term, Term)>),
    LessOrEqual(Box<(Term, Term)>),
    Like(Box<Term>, Pattern),
    /// Set membership.
    Contains(Box<(Term, Term)>),
    Set(Box<[Term]>),
}

/// Pattern of `like`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// Pattern without `*`.
    Exactly(Box<str>),
    /// Prefix, suffix, and substrings between them in order.
    Around { first: Box<str>, between: Box<[Box<str>]>, last: Box<str> },
}

/// A value during evaluation.
#[derive(Clone, Copy)]
enum EvalValue<'v> {
    Bool(bool),
    Long(i64),
    Text(&'v str),
    Set(&'v [Argument<'v>]),
    Literals(&'v [Term]),
    Record(&'v ArgumentMembers<'v>),
}

impl Condition {
    /// Compiles the `conditions` of a rule's JSON form; `None` if Cedar is required.
    pub(super) fn of(conditions: &Value) -> Option<Self> {
        let mut all = conditions.as_array()?.iter().map(|condition| {
            let body = Term::of(condition.get("body")?, 0)?;
            match condition.get("kind").and_then(Value::as_str)? {
                "when" => Some(body),
                "unless" => Some(Term::Not(Box::new(body))),
                _ => None,
            }
        });
        let first = all.next()??;
        all.try_fold(first, |before, next| Some(Term::And(Box::new((before, next?))))).map(Self)
    }

    /// Evaluates the condition; `None` if only Cedar can evaluate it, or if Cedar has to report the error.
    pub(super) fn holds(
        &self,
        asked: &RuleRequest<'_>,
        members: Option<&ArgumentMembers<'_>>,
    ) -> Option<bool> {
        Facts { asked, members }.bool(&self.0)
    }
}

impl Term {
    fn of(node: &Value, depth: usize) -> Option<Self> {
        if depth >= MAX_NESTING {
            return None;
        }
        let mut operators = node.as_object()?.iter();
        let (operator, operand) = operators.next().filter(|_| operators.len() == 0)?;
        let side = |name| Self::of(operand.get(name)?, depth + 1);
        let sides = |left, right| Some(Box::new((side(left)?, side(right)?)));
        Some(match operator.as_str() {
            "Value" => match operand {
                Value::Bool(is) => Self::Bool(*is),
                Value::Number(number) => Self::Long(number.as_i64()?),
                Value::String(text) => Self::Text(text.as_str().into()),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            },
            "Set" => {
                let elements =
                    operand.as_array()?.iter().map(|element| Self::of(element, depth + 1));
                Self::Set(elements.collect::<Option<_>>()?)
            }
            "." => Self::Member(path(node, depth)?),
            "has" => {
                let of = path(operand.get("left")?, depth)?;
                // Outside of `args`, the presence of a member depends on the inputs that the rule reads, not on the
                // request, so Cedar evaluates it.
                if of.first().is_none_or(|first| **first != *"args") {
                    return None;
                }
                Self::Has(of, operand.get("attr")?.as_str()?.into())
            }
            "!" => Self::Not(Box::new(side("arg")?)),
            "&&" => Self::And(sides("left", "right")?),
            "||" => Self::Or(sides("left", "right")?),
            "==" => Self::Equal(sides("left", "right")?),
            "!=" => Self::Not(Box::new(Self::Equal(sides("left", "right")?))),
            "<" => Self::Less(sides("left", "right")?),
            ">" => Self::Less(sides("right", "left")?),
            "<=" => Self::LessOrEqual(sides("left", "right")?),
            ">=" => Self::LessOrEqual(sides("right", "left")?),
            "contains" => Self::Contains(sides("left", "right")?),
            "like" => Self::Like(Box::new(side("left")?), Pattern::of(operand.get("pattern")?)?),
            _ => return None,
        })
    }
}

/// Path from `context` to a value.
fn path(node: &Value, depth: usize) -> Option<Box<[Box<str>]>> {
    let (mut at, mut names) = (node, Vec::new());
    loop {
        if at.get("Var").and_then(Value::as_str) == Some("context") {
            names.reverse();
            return Some(names.into());
        }
        let member = at.get(".").filter(|_| depth + names.len() < MAX_NESTING)?;
        names.push(member.get("attr")?.as_str()?.into());
        at = member.get("left")?;
    }
}

impl Pattern {
    fn of(parts: &Value) -> Option<Self> {
        let mut texts = vec![String::new()];
        for part in parts.as_array()? {
            match (part.as_str(), part.get("Literal").and_then(Value::as_str)) {
                (Some("Wildcard"), _) => texts.push(String::new()),
                (None, Some(text)) => texts.last_mut()?.push_str(text),
                (Some(_) | None, _) => return None,
            }
        }
        let mut texts = texts.into_iter().map(String::into_boxed_str);
        let first = texts.next()?;
        Some(match texts.next_back() {
            None => Self::Exactly(first),
            Some(last) => {
                let between = texts.filter(|text| !text.is_empty()).collect();
                Self::Around { first, between, last }
            }
        })
    }

    fn fits(&self, text: &str) -> bool {
        let (first, between, last) = match self {
            Self::Exactly(this) => return **this == *text,
            Self::Around { first, between, last } => (&**first, between, &**last),
        };
        let within = text.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
        let Some(mut rest) = within else { return false };
        // The leftmost match leaves the most text for the parts that follow.
        between.iter().all(|part| match memchr::memmem::find(rest.as_bytes(), part.as_bytes()) {
            Some(at) => {
                rest = rest.get(at + part.len()..).unwrap_or_default();
                true
            }
            None => false,
        })
    }
}

/// Evaluation input.
struct Facts<'f> {
    asked: &'f RuleRequest<'f>,
    members: Option<&'f ArgumentMembers<'f>>,
}

impl<'f> Facts<'f> {
    fn bool(&self, term: &'f Term) -> Option<bool> {
        match term {
            Term::Not(of) => self.bool(of).map(|is| !is),
            Term::And(both) => match self.bool(&both.0)? {
                false => Some(false),
                true => self.bool(&both.1),
            },
            Term::Or(both) => match self.bool(&both.0)? {
                true => Some(true),
                false => self.bool(&both.1),
            },
            Term::Equal(both) => equal(self.value(&both.0)?, self.value(&both.1)?),
            Term::Less(both) => Some(self.long(&both.0)? < self.long(&both.1)?),
            Term::LessOrEqual(both) => Some(self.long(&both.0)? <= self.long(&both.1)?),
            Term::Like(text, pattern) => match self.value(text)? {
                EvalValue::Text(text) => Some(pattern.fits(text)),
                _ => None,
            },
            Term::Contains(both) => self.contains(&both.0, &both.1),
            Term::Has(of, name) => match self.member(of)? {
                EvalValue::Record(members) => Some(found(members, name).is_some()),
                _ => None,
            },
            Term::Bool(_) | Term::Long(_) | Term::Text(_) | Term::Member(_) | Term::Set(_) => {
                match self.value(term)? {
                    EvalValue::Bool(is) => Some(is),
                    _ => None,
                }
            }
        }
    }

    fn long(&self, term: &'f Term) -> Option<i64> {
        match self.value(term)? {
            EvalValue::Long(number) => Some(number),
            _ => None,
        }
    }

    fn value(&self, term: &'f Term) -> Option<EvalValue<'f>> {
        Some(match term {
            Term::Bool(is) => EvalValue::Bool(*is),
            Term::Long(number) => EvalValue::Long(*number),
            Term::Text(text) => EvalValue::Text(text),
            Term::Set(elements) => EvalValue::Literals(elements),
            Term::Member(path) => self.member(path)?,
            Term::Has(..)
            | Term::Not(_)
            | Term::And(_)
            | Term::Or(_)
            | Term::Equal(_)
            | Term::Less(_)
            | Term::LessOrEqual(_)
            | Term::Like(..)
            | Term::Contains(_) => EvalValue::Bool(self.bool(term)?),
        })
    }

    /// Value at a path below `context`; `None` if absent.
    fn member(&self, path: &[Box<str>]) -> Option<EvalValue<'f>> {
        let (first, rest) = path.split_first()?;
        let of_session = self.asked.session;
        let text = match (&**first, rest) {
            ("args", _) => {
                return rest.iter().try_fold(
                    EvalValue::Record(self.members?),
                    |at, name| match at {
                        EvalValue::Record(members) => eval_value(found(members, name)?),
                        _ => None,
                    },
                );
            }
            ("client", []) => self.asked.client,
            ("carries_out", []) => {
                return self.asked.target.carries_out(self.asked.carries_out).map(EvalValue::Bool);
            }
            (group, [name]) => match (group, &**name) {
                ("intent", "operation_type") => self.asked.action.as_str(),
                ("intent", "data_sensitivity") => self.asked.sensitivity.map_or(UNKNOWN, word),
                ("intent", "reason") => self.asked.reason,
                ("session", "max_sensitivity") => of_session.max_sensitivity.map_or(UNKNOWN, word),
                ("session", "open_world_seen") => {
                    return Some(EvalValue::Bool(of_session.open_world_seen));
                }
                ("session", "calls") => {
                    return Some(EvalValue::Long(
                        i64::try_from(of_session.calls).unwrap_or(i64::MAX),
                    ));
                }
                _ => return None,
            },
            _ => return None,
        };
        Some(EvalValue::Text(text))
    }

    fn contains(&self, set: &'f Term, element: &'f Term) -> Option<bool> {
        let element = self.value(element)?;
        match self.value(set)? {
            EvalValue::Set(elements) => {
                any(elements.iter().map(|it| equal(eval_value(it)?, element)))
            }
            EvalValue::Literals(terms) => {
                any(terms.iter().map(|it| equal(self.value(it)?, element)))
            }
            EvalValue::Bool(_) | EvalValue::Long(_) | EvalValue::Text(_) | EvalValue::Record(_) => {
                None
            }
        }
    }
}

/// Whether any answer is true; `None` if any is `None`, since one element with an error makes the whole set an error.
fn any(mut answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    answers.try_fold(false, |before, next| Some(before | next?))
}

fn found<'v>(members: &'v ArgumentMembers<'v>, name: &str) -> Option<&'v Argument<'v>> {
    members.iter().find(|(of, _)| **of == *name).map(|(_, value)| value)
}

fn eval_value<'v>(value: &'v Argument<'v>) -> Option<EvalValue<'v>> {
    Some(match value {
        Argument::Text(text) => EvalValue::Text(text),
        Argument::Long(number) => EvalValue::Long(*number),
        Argument::Bool(is) => EvalValue::Bool(*is),
        Argument::Set(elements) => EvalValue::Set(elements),
        Argument::Record(members) => EvalValue::Record(members),
        Argument::Present => return None,
    })
}

/// Compares two values. Values of different types are unequal; sets and records are left to Cedar.
fn equal(a: EvalValue<'_>, b: EvalValue<'_>) -> Option<bool> {
    match (a, b) {
        (EvalValue::Bool(a), EvalValue::Bool(b)) => Some(a == b),
        (EvalValue::Long(a), EvalValue::Long(b)) => Some(a == b),
        (EvalValue::Text(a), EvalValue::Text(b)) => Some(a == b),
        (
            EvalValue::Bool(_) | EvalValue::Long(_) | EvalValue::Text(_),
            EvalValue::Bool(_) | EvalValue::Long(_) | EvalValue::Text(_),
        ) => Some(false),
        (EvalValue::Set(_) | EvalValue::Literals(_) | EvalValue::Record(_), _)
        | (_, EvalValue::Set(_) | EvalValue::Literals(_) | EvalValue::Record(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use cedar_policy::{EvalResult, Expression, Policy, eval_expression};
    use proptest::prelude::*;

    use super::*;
    use crate::SessionFacts;
    use crate::intent::Sensitivity;
    use crate::rules::needs::InputMembers;
    use crate::rules::needs::RuleNeeds;
    use crate::rules::request;
    use crate::rules::request::RequestEntities;
    use crate::rules::request::{RuleAction, RuleTarget, Subject};
    use crate::tool::{Annotations, Rules, Tool, ToolName};

    /// Results of this evaluator and of Cedar; `None` means no result.
    fn both(condition: &str, arguments: &str) -> (Option<bool>, Option<bool>) {
        let text = format!("permit(principal, action, resource) {condition};");
        let policy = Policy::parse(None, text).unwrap();
        let json = policy.to_json().unwrap();
        let needs = RuleNeeds::of(&json["conditions"]).unwrap();
        let name = ToolName::parse("s:t").unwrap();
        let tool = Arc::new(Tool::named(name, Annotations::default(), &Rules::default()));
        let asked = RuleRequest {
            subject: Subject { id: "admin", groups: &[] },
            action: RuleAction::Write,
            target: RuleTarget::Tool(&tool),
            arguments: arguments.as_bytes(),
            sensitivity: Some(Sensitivity::Private),
            reason: "for a*test",
            client: "cursor",
            session: SessionFacts { calls: 3, ..SessionFacts::default() },
            carries_out: false,
            now: SystemTime::UNIX_EPOCH,
        };
        let members = request::arguments(&asked, &needs, &InputMembers::new()).unwrap();
        let ours = Condition::of(&json["conditions"])
            .and_then(|condition| condition.holds(&asked, members.as_ref()));
        let entities = RequestEntities::of(asked.subject, asked.action, asked.target).unwrap();
        let request = request::request(&asked, &entities, &needs, members.as_ref()).unwrap();
        let whole = policy.as_ref().non_scope_constraints().cloned().map(Expression::from);
        let theirs = match eval_expression(&request, &entities.hierarchy, &whole.unwrap()) {
            Ok(EvalResult::Bool(is)) => Some(is),
            Ok(_) | Err(_) => None,
        };
        (ours, theirs)
    }

    const ARGUMENTS: &str = r#"{"path":"/etc/a*b/c","n":-3,"big":9223372036854775807,"yes":true,
        "tags":["a","b"],"none":[],"numbers":[1,2],"o":{"p":{"q":"x"},"Z":1},"é":"\u00e9"}"#;

    #[test]
    fn simple_conditions_evaluate_like_cedar() {
        for (condition, expected) in [
            (r#"when { context.args has path && context.args.path like "/etc/*" }"#, true),
            (r#"when { context.args.path like "*/c" && !(context.args.path like "*/c*d") }"#, true),
            (r#"when { context.args.path like "/etc/a\*b*" }"#, true),
            (r#"when { context.args.path like "/etc/a\*c*" }"#, false),
            (r#"when { context.args.path like "*" && !(context.args.path like "") }"#, true),
            (r#"when { context.args.path like "/etc/a*b/c/etc/*" }"#, false),
            (r#"when { context.args.path like "/*c*c" }"#, true),
            (r#"when { context.args has nothing || context.args.n < -2 }"#, true),
            (
                r#"when { context.args.n >= -3 && context.args.n <= -3 && context.args.n > -4 }"#,
                true,
            ),
            (r#"when { context.args.big == 9223372036854775807 }"#, true),
            (r#"unless { context.args.yes }"#, false),
            (r#"when { context.args.yes } unless { context.args.n == 3 }"#, true),
            (r#"when { context.args.tags.contains("b") }"#, true),
            (r#"when { context.args.none.contains("b") || context.args.tags.contains(1) }"#, false),
            (r#"when { ["x", "y"].contains(context.args.o.p.q) }"#, true),
            (
                r#"when { context.args.o.p has q && context.args.o has Z && context.args.o has p }"#,
                true,
            ),
            (r#"when { context.args.path != 1 && context.args["é"] == "é" }"#, true),
            (
                r#"when { context.intent.operation_type == "write" && context.client == "cursor" }"#,
                true,
            ),
            (r#"when { context.intent.reason like "*a\*test" }"#, true),
            (r#"when { context.intent.data_sensitivity == "private" }"#, true),
            (r#"when { context.session.calls >= 3 && !context.session.open_world_seen }"#, true),
            (r#"when { context.session.max_sensitivity == "unknown" }"#, true),
            (r#"when { context.carries_out && !(context.client == "other") }"#, true),
            (r#"when { true && (false || !false) }"#, true),
        ] {
            assert_eq!(both(condition, ARGUMENTS), (Some(expected), Some(expected)), "{condition}");
        }
    }

    #[test]
    fn errors_and_complex_conditions_are_left_to_cedar() {
        for condition in [
            r#"when { context.args.nothing == 1 }"#,
            r#"when { context.args.path < 1 }"#,
            r#"when { context.args.path && true }"#,
            r#"when { context.args.n like "x" }"#,
            r#"when { context.args.path has x }"#,
            r#"when { context.args.path.contains("x") }"#,
            r#"when { ["a", context.args.nothing].contains("a") }"#,
            r#"when { context.args.tags == ["b", "a"] }"#,
            r#"when { context.args.o == {p: {q: "x"}, Z: 1} }"#,
            r#"when { principal == Agent::"admin" }"#,
            r#"when { context has client }"#,
            r#"when { context.args.n + 1 == -2 }"#,
            r#"when { context.capability.open_world }"#,
            r#"when { context.now < datetime("2100-01-01") }"#,
            r#"when { if context.args.yes then true else false }"#,
        ] {
            assert_eq!(both(condition, ARGUMENTS).0, None, "{condition}");
        }
    }

    fn operand() -> impl Strategy<Value = String> {
        prop_oneof![
            prop::sample::select(vec![
                "context.args.a",
                "context.args.b",
                "context.args.o.a",
                "context.args.o",
                "context.client",
                "context.session.calls",
                "1",
                "-1",
                "true",
                "\"a\"",
                "\"a*b\"",
                "\"\"",
                "[1, \"a\"]",
                "[]",
            ])
            .prop_map(str::to_owned),
        ]
    }

    fn condition() -> impl Strategy<Value = String> {
        let name = || prop::sample::select(vec!["a", "b", "o"]);
        let leaf = prop_oneof![
            4 => (operand(), prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]), operand())
                .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            2 => (operand(), "[ab*]{0,4}").prop_map(|(a, pattern)| format!("({a} like \"{pattern}\")")),
            2 => name().prop_map(|name| format!("(context.args has {name})")),
            1 => name().prop_map(|name| format!("(context.args.o has {name})")),
            2 => (operand(), operand()).prop_map(|(a, b)| format!("{a}.contains({b})")),
            1 => operand(),
        ];
        leaf.prop_recursive(3, 12, 2, |inner| {
            prop_oneof![
                (inner.clone(), prop::sample::select(vec!["&&", "||"]), inner.clone())
                    .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
                inner.prop_map(|a| format!("!({a})")),
            ]
        })
    }

    fn arguments() -> impl Strategy<Value = String> {
        let value = || {
            prop_oneof![
                "[ab*]{0,5}".prop_map(|text| format!("\"{text}\"")),
                prop::sample::select(vec![
                    "1",
                    "-1",
                    "true",
                    "false",
                    "[1,2]",
                    "[\"a\"]",
                    "[]",
                    "{\"a\":1}"
                ])
                .prop_map(str::to_owned),
            ]
        };
        (prop::option::of(value()), prop::option::of(value()), prop::option::of(value())).prop_map(
            |(a, b, o)| {
                let members = [("a", a), ("b", b), ("o", o)];
                let members = members
                    .iter()
                    .filter_map(|(name, value)| Some(format!("\"{name}\":{}", value.as_ref()?)));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            },
        )
    }

    proptest! {
        #[test]
        fn simple_evaluator_always_agrees_with_cedar(condition in condition(), arguments in arguments()) {
            let text = format!("when {{ {condition} }}");
            if Policy::parse(None, format!("permit(principal, action, resource) {text};")).is_ok() {
                let (ours, theirs) = both(&text, &arguments);
                prop_assert!(ours.is_none() || ours == theirs, "{ours:?} {theirs:?} {text} {arguments}");
            }
        }
    }
}
