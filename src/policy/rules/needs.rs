//! What a rule's condition looks at, read from its syntax tree once: so that a request brings no more than that.

use std::collections::BTreeMap;

use serde_json::Value;

/// Levels of a condition's syntax tree; Cedar's parser refuses deeper texts long before.
const MAX_NESTING: usize = 512;

/// The parts of an object that are looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its value as a whole.
    pub(super) whole: bool,
    /// Its members, by name; one that is neither whole nor has members is only asked whether it is there.
    pub(super) members: BTreeMap<Box<str>, Wanted>,
}

impl Wanted {
    /// True where nothing but whether it is there is asked.
    pub(super) fn is_presence(&self) -> bool {
        !self.whole && self.members.is_empty()
    }

    fn mark(&mut self, path: &[String], whole: bool) {
        let mut at = self;
        for name in path {
            at = at.members.entry(name.as_str().into()).or_default();
        }
        at.whole |= whole;
    }

    /// Adds what `other` looks at.
    pub(super) fn add(&mut self, other: &Self) {
        self.whole |= other.whole;
        for (name, theirs) in &other.members {
            self.members.entry(name.clone()).or_default().add(theirs);
        }
    }

    /// Whether the value at `path`, or a part of it, is looked at.
    pub(super) fn covers(&self, path: &[Box<str>]) -> bool {
        let mut at = self;
        for name in path {
            if at.whole {
                return true;
            }
            match at.members.get(name) {
                Some(member) => at = member,
                None => return false,
            }
        }
        true
    }
}

/// What a condition looks at beside principal, action and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleNeeds {
    /// `context.args`
    pub(super) args: Option<Wanted>,
    /// `context.intent`
    pub(super) intent: bool,
    /// `context.session`
    pub(super) session: bool,
    /// `context.client`
    pub(super) client: bool,
    /// `context.now`
    pub(super) now: bool,
    /// `context.capability`, which is the tool's.
    pub(super) capability: bool,
    /// Every path below `context`, as it is written.
    pub(super) paths: Vec<Box<[String]>>,
}

impl RuleNeeds {
    /// Reads the `conditions` of a rule's JSON form. `None` if they are nested too deep.
    pub(super) fn of(conditions: &Value) -> Option<Self> {
        let mut needs = Self::default();
        needs.visit(conditions, 0)?;
        needs.paths.sort();
        needs.paths.dedup();
        Some(needs)
    }

    /// Whether what it comes to depends on more than principal, tool and action.
    pub(super) fn looks_at_request(&self) -> bool {
        self.args.is_some() || self.intent || self.session || self.client || self.now
    }

    /// Adds what `other` looks at; not the paths.
    pub(super) fn add(&mut self, other: &Self) {
        if let Some(theirs) = &other.args {
            self.args.get_or_insert_default().add(theirs);
        }
        self.intent |= other.intent;
        self.session |= other.session;
        self.client |= other.client;
        self.now |= other.now;
        self.capability |= other.capability;
    }

    fn visit(&mut self, node: &Value, depth: usize) -> Option<()> {
        if depth > MAX_NESTING {
            return None;
        }
        match node {
            Value::Object(members) => {
                if members.get("Var").and_then(Value::as_str) == Some("context") {
                    self.mark(Vec::new(), true);
                    return Some(());
                }
                for (operator, whole) in [(".", true), ("has", false)] {
                    let Some(operand) = members.get(operator) else { continue };
                    if let Some(path) = path(operand) {
                        self.mark(path, whole);
                        return Some(());
                    }
                }
                // Literals hold no expression.
                let within = members.iter().filter(|(name, _)| *name != "Value");
                within.map(|(_, value)| value).try_for_each(|value| self.visit(value, depth + 1))
            }
            Value::Array(elements) => {
                elements.iter().try_for_each(|element| self.visit(element, depth + 1))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(()),
        }
    }

    fn mark(&mut self, path: Vec<String>, whole: bool) {
        let (first, rest) = match path.split_first() {
            None => ("", &path[..]),
            Some((first, rest)) => (first.as_str(), rest),
        };
        let all = first.is_empty();
        if all || first == "args" {
            self.args.get_or_insert_default().mark(rest, whole);
        }
        self.intent |= all || first == "intent";
        self.session |= all || first == "session";
        self.client |= all || first == "client";
        self.now |= all || first == "now";
        self.capability |= all || first == "capability";
        self.paths.push(path.into());
    }
}

/// The path below `context` that `{"left": …, "attr": …}` leads to, if it is one.
fn path(operand: &Value) -> Option<Vec<String>> {
    let attribute = operand.get("attr").and_then(Value::as_str)?;
    let left = operand.get("left")?;
    let mut path = match left.get("Var").and_then(Value::as_str) {
        Some("context") => Vec::new(),
        Some(_) => return None,
        None => path(left.get(".")?)?,
    };
    path.push(attribute.to_owned());
    Some(path)
}

#[cfg(test)]
mod tests {
    use cedar_policy::Policy;

    use super::*;

    fn needs(condition: &str) -> RuleNeeds {
        let text = format!("permit(principal, action, resource) when {{ {condition} }};");
        let json = Policy::parse(None, text).unwrap().to_json().unwrap();
        RuleNeeds::of(&json["conditions"]).unwrap()
    }

    #[test]
    fn only_what_a_condition_names_is_wanted() {
        let found = needs(
            r#"context.args has a && context.args.a.b == "context" && context.args["x y"] > 1
               && [context.args.l].contains(3) && context.capability.open_world"#,
        );
        let args = found.args.clone().unwrap();
        let names: Vec<_> = args.members.keys().map(|name| &**name).collect();
        assert_eq!(names, ["a", "l", "x y"]);
        assert!(!args.whole && args.members["l"].whole && !args.members["a"].whole);
        assert!(args.members["a"].members["b"].whole);
        assert!(found.capability && !found.intent && !found.session && !found.now);
        assert!(found.looks_at_request());
        let path = |names: &[&str]| names.iter().map(|it| (*it).into()).collect::<Vec<Box<str>>>();
        assert!(args.covers(&path(&["a"])) && args.covers(&path(&["l", "deeper"])));
        assert!(!args.covers(&path(&["b"])));
    }

    #[test]
    fn to_ask_whether_something_is_there_is_not_to_ask_for_it() {
        let args = needs("context.args has force").args.unwrap();
        assert!(args.members["force"].is_presence());
        assert!(!needs("context.capability.open_world").looks_at_request());
        assert!(!needs(r#"principal == Agent::"context""#).looks_at_request());
    }

    #[test]
    fn the_context_as_a_whole_is_everything() {
        let found = needs("context == {a: 1}");
        assert!(found.args.unwrap().whole && found.intent && found.session && found.now);
    }
}
